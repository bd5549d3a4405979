package objectstoretest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// fillBucket writes n small objects, several at once.
func (h *harness) fillBucket(b objectstore.Bucket, n int, key func(i int) string) []string {
	h.Helper()
	keys := make([]string, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for i := range next {
				_, err := b.Put(h.Context(), h.prefix+keys[i], strings.NewReader("x"), 1, objectstore.Condition{})
				if err != nil {
					h.Errorf("Put: %v", err)
				}
			}
		})
	}
	for i := range n {
		keys[i] = key(i)
		next <- i
	}
	close(next)
	all.Wait()
	if h.Failed() {
		h.FailNow()
	}
	slices.Sort(keys)
	return keys
}

func checkListOrder(h *harness, b objectstore.Bucket) {
	n := 10_000
	if testing.Short() {
		n = 1_500 // more than a service lists at once
	}
	keys := h.fillBucket(b, n, func(i int) string {
		dir := fmt.Sprintf("d%02d", i/4%25)
		switch i % 4 { // siblings on both sides of '/', which is not where file systems sort it
		case 0:
			return fmt.Sprintf("%s/%d", dir, i)
		case 1:
			return fmt.Sprintf("%s-%d", dir, i)
		case 2:
			return fmt.Sprintf("%s/sub.%d/x", dir, i)
		}
		return fmt.Sprintf("%s0%d", dir, i)
	})
	start := time.Now()
	if got := h.listKeys(b, ""); !slices.Equal(got, keys) {
		for i := range keys {
			if i >= len(got) || got[i] != keys[i] {
				h.Fatalf("List: %d keys, and the %dth is %q, want %d, and %q", len(got), i, got[min(i, len(got)-1)], len(keys), keys[i])
			}
		}
		h.Fatalf("List: %d keys, want %d", len(got), len(keys))
	}
	h.Logf("%d keys listed in %v", n, time.Since(start).Round(time.Millisecond))
}

func checkListPrefix(h *harness, b objectstore.Bucket) {
	keys := []string{"a1", "a2/x", "a2/y", "b/c/d1", "b/c/d2", "b/c0", "b1"}
	for _, key := range keys {
		h.putText(b, key, key)
	}
	for prefix, want := range map[string][]string{
		"": keys, "a": keys[:3], "a2": keys[1:3], "a2/": keys[1:3], "a2/x": keys[1:2], "b/": keys[3:6], "b/c": keys[3:6],
		"b/c/": keys[3:5], "b/c/d": keys[3:5], "b/c/d2": keys[4:5], "b/c/d22": nil, "b/x/": nil, "z": nil, "a1/": nil,
	} {
		if got := h.listKeys(b, prefix); !slices.Equal(got, want) {
			h.Errorf("List of %q: %q, want %q", prefix, got, want)
		}
	}
	for o, err := range b.List(h.Context(), h.prefix) {
		if err != nil || o.Key != h.prefix+"a1" || o.Size != 2 || o.Tag == "" || o.Modified.IsZero() {
			h.Errorf("List: %+v, %v", o, err)
		}
		break
	}
}

func checkManyDeletes(h *harness, b objectstore.Bucket) {
	n := 2_500
	if testing.Short() {
		n = 1_100 // more than a service removes at once
	}
	keys := h.fillBucket(b, n, func(i int) string { return fmt.Sprintf("%d/%d", i%10, i) })
	h.putText(b, "stays", "x")
	for i := range keys {
		keys[i] = h.prefix + keys[i]
	}
	if err := b.Delete(h.Context(), keys...); err != nil {
		h.Errorf("Delete: %v", err)
	}
	if got := h.listKeys(b, ""); !slices.Equal(got, []string{"stays"}) {
		h.Errorf("List: %d keys %.200q", len(got), got)
	}
}
