package session

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// The note for a restarted sandbox says what is lost.
func TestRemains(t *testing.T) {
	for _, tt := range []struct {
		caps atoll.Caps
		want string
	}{
		{atoll.Caps{Durable: atoll.DurableCrash, Volumes: true}, "its files are intact, its processes are gone"},
		{atoll.Caps{Durable: atoll.DurableStop}, "its files are intact, its processes are gone"},
		{atoll.Caps{Durable: atoll.DurableNone, Volumes: true}, "the files in its work directory and volumes are intact; all other files and its processes are gone"},
		{atoll.Caps{Durable: atoll.DurableNone}, "its files and processes are gone"},
	} {
		if got := describeRestart(tt.caps); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.caps, got, tt.want)
		}
	}
}
