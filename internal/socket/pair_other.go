//go:build unix && !linux

package socket

func pair() ([2]int, error) { return pairUnforked() }
