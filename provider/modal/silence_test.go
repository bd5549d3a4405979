//go:build linux

package modal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// connects counts the programs in a sandbox that relay connections to its guest.
const connects = `n=0; for f in /proc/[0-9]*/cmdline; do case $(tr '\0' ' ' <$f 2>/dev/null) in *"/guest con"nect*) n=$((n+1));; esac; done; echo $n`

// A program at Modal whose client has died ends by itself, with what it has executed; the
// sandbox runs on. A client that was only away connects again.
func TestSilence(t *testing.T) {
	silence := max(12*time.Second, testenv.Scale(6*time.Second))
	net, by := through(t)
	quick := func(o *modal.Options) { modal.Silence(o, silence) }
	away := provider(t, by, quick)
	sb := created(t, away, atoll.Spec{})
	long, err := sb.Exec(t.Context(), shell("while :; do sleep 1; done"))
	if err != nil {
		t.Fatal(err)
	}
	opts := optionsOf(away)
	opts.ServerURL = need(t).server.URL()
	other, err := modal.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	there, err := other.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	count := func() string { return strings.TrimSpace(says(t, there, connects)) }
	if got := count(); got != "2" {
		t.Fatalf("%s programs connect, want one for each provider", got)
	}
	net.freeze()
	becomes(t, "only who is there is connected", 10*silence, func() bool { return count() == "1" })
	time.Sleep(2 * silence) // a quiet client is still there
	if got := count(); got != "1" {
		t.Errorf("%s programs connect, want that of the live client", got)
	}
	net.thaw()
	becomes(t, "the client is back", 10*silence, func() bool { // what it was about to send may be lost
		err := atoll.Run(t.Context(), sb, shell("true"))
		if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	again, err := sb.Process(t.Context(), long.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Signal(t.Context(), atoll.SIGKILL); err != nil {
		t.Errorf("what runs in it has not gone on: %v", err)
	}
}

// Close ends the provider's programs at Modal at once.
func TestCloseEndsConnections(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	for range 3 {
		again := reopen(t, p)
		there, err := again.Get(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(says(t, there, connects)); got != "2" {
			t.Errorf("%s programs connect, want one for each provider", got)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		becomes(t, "the other one is connected alone", 10*time.Second, func() bool { return strings.TrimSpace(says(t, sb, connects)) == "1" })
	}
}
