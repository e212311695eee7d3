package server

// Reserve is reserve, for tests.
var Reserve = reserve
