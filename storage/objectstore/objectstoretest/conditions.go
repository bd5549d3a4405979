package objectstoretest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

func checkConditions(h *harness, b objectstore.Bucket) {
	put := func(key, text string, when objectstore.Condition) (objectstore.Object, error) {
		return b.Put(h.Context(), h.prefix+key, strings.NewReader(text), int64(len(text)), when)
	}
	_, err := put("k", "wrong", objectstore.Condition{Tag: "none"})
	h.wantKind("Put on a tag of what is not there", err, atoll.ErrConflict)
	first, err := put("k", "first", objectstore.Condition{Absent: true})
	if err != nil {
		h.Fatalf("Put of what is absent: %v", err)
	}
	_, err = put("k", "wrong", objectstore.Condition{Absent: true})
	h.wantKind("Put if absent of what is there", err, atoll.ErrConflict)
	_, err = put("k", "wrong", objectstore.Condition{Tag: "none"})
	h.wantKind("Put on no tag", err, atoll.ErrConflict)
	second, err := put("k", "second", objectstore.Condition{Tag: first.Tag})
	if err != nil {
		h.Fatalf("Put on its tag: %v", err)
	}
	_, err = put("k", "wrong", objectstore.Condition{Tag: first.Tag})
	h.wantKind("Put on the tag it had", err, atoll.ErrConflict)
	h.wantText(b, "k", "second")
	for o, err := range b.List(h.Context(), h.prefix) { // whose tags are as good
		if err != nil || o.Tag != second.Tag {
			h.Errorf("List: %+v, %v; Put: %+v", o, err, second)
		}
	}
	if err := b.Delete(h.Context(), h.prefix+"k"); err != nil {
		h.Fatal(err)
	}
	_, err = put("k", "wrong", objectstore.Condition{Tag: second.Tag})
	h.wantKind("Put on the tag of what is gone", err, atoll.ErrConflict)
	h.wantText(b, "k", "")
	large := make([]byte, sizes[1])
	if _, err = b.Put(h.Context(), h.prefix+"large", bytes.NewReader(large), int64(len(large)), objectstore.Condition{Absent: true}); err != nil {
		h.Fatalf("Put of a large object that is absent: %v", err)
	}
	for _, when := range []objectstore.Condition{{Absent: true}, {Tag: "none"}} {
		_, err = b.Put(h.Context(), h.prefix+"large", bytes.NewReader(large), int64(len(large)), when)
		h.wantKind(fmt.Sprintf("Put of a large object on %+v", when), err, atoll.ErrConflict)
	}
}

func checkCheckConditions(h *harness, b objectstore.Bucket) {
	if err := objectstore.CheckConditions(h.Context(), b, h.prefix); err != nil {
		h.Error(err)
	}
	if got := h.listKeys(b, ""); len(got) > 0 {
		h.Errorf("it leaves %q", got)
	}
	err := objectstore.CheckConditions(h.Context(), b, "/")
	h.wantKind("CheckConditions of no prefix", err, atoll.ErrInvalid)
}

func checkRacingPuts(h *harness, b objectstore.Bucket) {
	for round := range 10 {
		key := fmt.Sprint("k", round)
		var mu sync.Mutex
		var winners []string
		var all sync.WaitGroup
		for i := range 16 {
			other := b
			if i%2 == 1 {
				other = h.open(h.T)
			}
			all.Go(func() {
				text := fmt.Sprint("of ", i)
				_, err := other.Put(h.Context(), h.prefix+key, strings.NewReader(text), int64(len(text)), objectstore.Condition{Absent: true})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					winners = append(winners, text)
				case atoll.KindOf(err) != atoll.ErrConflict:
					h.Errorf("Put: %v", err)
				}
			})
		}
		all.Wait()
		if len(winners) != 1 {
			h.Fatalf("these writes all succeeded: %q", winners)
		}
		h.wantText(b, key, winners[0])
	}
}

// checkRacingUpdates has many count in one object.
func checkRacingUpdates(h *harness, b objectstore.Bucket) {
	const writers, each = 8, 10
	h.putText(b, "count", "0")
	var all sync.WaitGroup
	for i := range writers {
		other := b
		if i%2 == 1 {
			other = h.open(h.T)
		}
		all.Go(func() {
			for done := 0; done < each; {
				text, o, err := h.getRange(other, "count", 0, -1)
				if err != nil {
					h.Errorf("Get: %v", err)
					return
				}
				var n int
				if _, err := fmt.Sscan(text, &n); err != nil {
					h.Errorf("it holds %q", text)
					return
				}
				next := fmt.Sprint(n + 1)
				_, err = other.Put(h.Context(), h.prefix+"count", strings.NewReader(next), int64(len(next)), objectstore.Condition{Tag: o.Tag})
				switch {
				case err == nil:
					done++
				case atoll.KindOf(err) != atoll.ErrConflict:
					h.Errorf("Put: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	h.wantText(b, "count", fmt.Sprint(writers*each))
}
