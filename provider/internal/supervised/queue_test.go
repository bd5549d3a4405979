package supervised

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestStartQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newStartQueue(2, time.Minute)
		var leaves []func()
		for range 2 {
			leave, err := q.joinQueue(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.joinQueue(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third start: %v", err)
		}

		// They come in the order of their requests.
		turns := make(chan int, 3)
		for i := range 3 {
			go func() {
				leave, err := q.joinQueue(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				turns <- i
				leave()
			}()
			synctest.Wait()
		}
		leaves[0]()
		leaves[0]() // the second call does nothing
		for want := range 3 {
			if got := <-turns; got != want {
				t.Errorf("start %d is before start %d", got, want)
			}
		}

		// The other start takes so long that it no longer counts.
		first, err := q.joinQueue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer first()
		began := time.Now()
		second, err := q.joinQueue(t.Context())
		if waited := time.Since(began); err != nil || waited == 0 || waited > time.Minute {
			t.Errorf("after %s: %v", waited, err)
		}
		second()
		leaves[1]()
	})
}

func TestStartQueueWithoutLimit(t *testing.T) {
	q := newStartQueue(0, time.Minute)
	for range 10 {
		if _, err := q.joinQueue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
