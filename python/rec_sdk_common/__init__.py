"""Import paths of Rec SDK's common package that training scripts use; the values are those of mxrec."""
