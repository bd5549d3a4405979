package main

import "os/exec"

// startGroup changes nothing here.
func startGroup(*exec.Cmd) {}
