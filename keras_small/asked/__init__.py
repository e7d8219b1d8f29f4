"""The data that `compress` gets, the inputs that models take, and the progress that is printed."""
