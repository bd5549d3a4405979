package retry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var errBusy = errors.New("busy")

// recordAttempts returns a function that fails with the errors in turn, then succeeds, and the
// times of its calls.
func recordAttempts(failures ...error) (f func() error, times *[]time.Duration) {
	begun := time.Now()
	times = new([]time.Duration)
	return func() error {
		*times = append(*times, time.Since(begun))
		if n := len(*times); n <= len(failures) {
			return failures[n-1]
		}
		return nil
	}, times
}

func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, times := recordAttempts(slices.Repeat([]error{errBusy}, 5)...)
		var notified []int
		p := Policy{First: time.Second, Max: 4 * time.Second, Notify: func(attempt int, err error) {
			notified = append(notified, attempt)
			if err != errBusy {
				t.Errorf("Notify got %v, want %v", err, errBusy)
			}
		}}
		if err := p.Do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second}
		if len(*times) != len(want)+1 || (*times)[0] != 0 {
			t.Fatalf("attempts at %v, want one at once and %d more", *times, len(want))
		}
		for i, pause := range want {
			got := (*times)[i+1] - (*times)[i]
			if got < pause*8/10 || got > pause {
				t.Errorf("pause %d was %s, want %s and at most a fifth less", i+1, got, pause)
			}
		}
		if want := []int{1, 2, 3, 4, 5}; !slices.Equal(notified, want) {
			t.Errorf("Notify got the attempts %v, want %v", notified, want)
		}
	})
}

func TestUnlimitedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, times := recordAttempts(slices.Repeat([]error{errBusy}, 10)...)
		if err := (Policy{First: time.Second}).Do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if total := (*times)[10]; total < 1023*time.Second*8/10 || total > 1023*time.Second {
			t.Errorf("10 pauses took %s, want 1023s and at most a fifth less", total)
		}
	})
}

func TestFirstAboveMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, times := recordAttempts(errBusy)
		if err := (Policy{First: time.Hour, Max: time.Second}).Do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if pause := (*times)[1]; pause > time.Second {
			t.Errorf("the pause was %s, want at most 1s", pause)
		}
	})
}

func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= 3; n++ {
			f, times := recordAttempts(slices.Repeat([]error{errBusy}, 9)...)
			if err := (Policy{First: time.Second, Attempts: n}).Do(t.Context(), f); err != errBusy {
				t.Errorf("got %v, want %v", err, errBusy)
			}
			if len(*times) != n {
				t.Errorf("%d attempts, want %d", len(*times), n)
			}
		}
	})
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, times := recordAttempts(slices.Repeat([]error{errBusy}, 99)...)
		p := Policy{First: time.Second, Max: time.Second, Timeout: 10 * time.Second}
		if err := p.Do(t.Context(), f); err != errBusy {
			t.Errorf("got %v, want %v", err, errBusy)
		}
		if last := (*times)[len(*times)-1]; last < 9*time.Second || last > 10*time.Second {
			t.Errorf("the last attempt began after %s, want 9s to 10s", last)
		}
	})
}

func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begun := time.Now()
		f, _ := recordAttempts(slices.Repeat([]error{errBusy}, 99)...)
		if err := (Policy{First: time.Hour}).Do(ctx, f); err != context.DeadlineExceeded {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("Do returned after %s, want 10s", took)
		}
		f, times := recordAttempts(errBusy)
		if err := (Policy{First: time.Second}).Do(ctx, f); err != context.DeadlineExceeded || len(*times) != 1 {
			t.Errorf("after the end of ctx: %d attempts and %v, want 1 and %v", len(*times), err, context.DeadlineExceeded)
		}
		f, _ = recordAttempts()
		if err := (Policy{First: time.Second}).Do(ctx, f); err != nil {
			t.Errorf("success after the end of ctx: %v", err)
		}
	})
}

func TestIf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := errors.New("other")
		f, times := recordAttempts(errBusy, errBusy, other, errBusy)
		p := Policy{First: time.Second, If: func(err error) bool { return err == errBusy }}
		if err := p.Do(t.Context(), f); err != other {
			t.Errorf("got %v, want %v", err, other)
		}
		if len(*times) != 3 {
			t.Errorf("%d attempts, want 3", len(*times))
		}
	})
}

func TestPermanent(t *testing.T) {
	wrapped := fmt.Errorf("outer: %w", Permanent(errBusy))
	for _, test := range []struct{ err, want error }{
		{Permanent(errBusy), errBusy},
		{Permanent(Permanent(errBusy)), errBusy},
		{wrapped, wrapped},
	} {
		for _, attempts := range []int{0, 1, 5} {
			f, times := recordAttempts(test.err)
			p := Policy{First: time.Hour, Attempts: attempts, If: func(error) bool { return true }}
			if err := p.Do(t.Context(), f); err != test.want || len(*times) != 1 {
				t.Errorf("%#v: %d attempts and %#v, want 1 and %#v", test.err, len(*times), err, test.want)
			}
		}
	}
	if err := Permanent(nil); err != nil {
		t.Errorf("Permanent(nil) = %v", err)
	}
}

func TestIsPermanent(t *testing.T) {
	for _, kind := range atoll.Kinds() {
		want := slices.Contains([]atoll.Kind{atoll.ErrInvalid, atoll.ErrDenied, atoll.ErrNotFound, atoll.ErrUnsupported, atoll.ErrCommandNotFound}, kind)
		if got := IsPermanent(atoll.E("create", "web", kind, errBusy)); got != want {
			t.Errorf("kind %q: %v, want %v", kind, got, want)
		}
	}
	_, missing := exec.LookPath("a-program-that-does-not-exist")
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errBusy, false},
		{fs.ErrPermission, true},
		{missing, true},
		{atoll.E("build", "debian", atoll.ErrUnavailable, missing), true},
		{context.DeadlineExceeded, false},
	} {
		if got := IsPermanent(test.err); got != test.want {
			t.Errorf("IsPermanent(%v) = %v, want %v", test.err, got, test.want)
		}
	}
}
