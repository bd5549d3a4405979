//go:build unix && !linux

package socket

func pair(kind int) ([2]int, error) { return pairUnforked(kind) }
