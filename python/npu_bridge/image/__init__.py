"""Image ops of the NPU, which recommenders do not use."""
