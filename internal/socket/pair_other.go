//go:build unix && !linux

package socket

func makePair(kind int) ([2]int, error) { return makePairLocked(kind) }
