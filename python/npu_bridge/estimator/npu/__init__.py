"""Configuration, hooks, optimizers, loss scaling, RNN layers, scopes and Estimator classes."""
