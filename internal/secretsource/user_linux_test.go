package secretsource

import (
	"bufio"
	"strings"
	"testing"
)

func TestMapID(t *testing.T) {
	const ids = "         0       1000          1\n         1     100000      65536\n"
	for id, want := range map[int]int{0: 1000, 1: 100000, 65536: 165535, 65537: 65537} {
		if got := mapID(bufio.NewScanner(strings.NewReader(ids)), id); got != want {
			t.Errorf("%d: got %d, want %d", id, got, want)
		}
	}
}
