package wsl2

// Decode is decode.
var Decode = decodeOutput
