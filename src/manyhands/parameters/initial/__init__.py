"""The first values of parameters, made in parts where the whole model would not fit."""
