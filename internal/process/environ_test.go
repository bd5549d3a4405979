package process

import (
	"strings"
	"testing"
)

func TestEnviron(t *testing.T) {
	got := Environ([]string{"A=1", "B=2"}, nil, []string{"A=3", "C=", "D", "A=4=5"}, []string{"D=6"})
	if want := "A=4=5 B=2 C= D=6"; strings.Join(got, " ") != want {
		t.Errorf("Environ: %q, want %s", got, want)
	}
	for key, want := range map[string]string{"A": "4=5", "B": "2", "C": "", "D": "6", "E": "", "": ""} {
		if got := Lookup(got, key); got != want {
			t.Errorf("Lookup %q: %q, want %q", key, got, want)
		}
	}
}
