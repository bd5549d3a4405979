//go:build linux

package gvisor_test

import "testing"

func TestTerminalSize(t *testing.T)   { newLab(t).CheckTerminalSize() }
func TestTerminalKeys(t *testing.T)   { newLab(t).CheckTerminalKeys() }
func TestTerminalJobs(t *testing.T)   { newLab(t).CheckTerminalJobs() }
func TestTerminalDevice(t *testing.T) { newLab(t).CheckTerminalDevice() }
func TestTerminalRaw(t *testing.T)    { newLab(t).CheckTerminalRaw() }
