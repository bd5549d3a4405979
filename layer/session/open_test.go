package session

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Whoever has a sandbox that was started again is told what of it is lost.
func TestRemains(t *testing.T) {
	for _, tt := range []struct {
		caps atoll.Caps
		want string
	}{
		{atoll.Caps{Durable: atoll.DurableCrash, Volumes: true}, "its files are there, what ran in it is not"},
		{atoll.Caps{Durable: atoll.DurableStop}, "its files are there, what ran in it is not"},
		{atoll.Caps{Durable: atoll.DurableNone, Volumes: true}, "the files of its work directory and volumes are there; all others, and what ran in it, are not"},
		{atoll.Caps{Durable: atoll.DurableNone}, "its files are gone, and what ran in it"},
	} {
		if got := remains(tt.caps); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.caps, got, tt.want)
		}
	}
}
