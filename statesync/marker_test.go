package statesync_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/statesync"
)

// Where the marker is gone, no prune takes the bytes of versions for bytes that none
// needs, and the next push makes it anew, with a number that is beyond theirs.
func TestMarkerGone(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"": 0, "clock behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := openBucket(t)
			now := time.Now()
			was := map[int64]string{}
			p := newPlace(t)
			early := newRemote(t, b, statesync.Options{}.WithNow(func() time.Time { return now.Add(ahead) }))
			for i := range 3 {
				p.write("file", fmt.Sprint(i))
				p.write("big", strings.Repeat(fmt.Sprint(i), 300<<10))
				was[p.push(early).Version] = p.content()
			}
			last := newest(t, early)
			if err := b.Delete(t.Context(), prefix+"/latest"); err != nil {
				t.Fatal(err)
			}
			r := newRemote(t, b, statesync.Options{}.WithNow(func() time.Time { return now }))
			if _, err := r.Prune(t.Context(), statesync.Keep{Last: 1}); atoll.KindOf(err) != atoll.ErrInternal || !strings.Contains(err.Error(), "push") {
				t.Errorf("Prune: %v, want one that says to push", err)
			}
			p.write("file", "after")
			st := p.push(r)
			if st.Version <= last {
				t.Errorf("version %d after %d", st.Version, last)
			}
			was[st.Version] = p.content()
			if _, err := r.Prune(t.Context(), statesync.Keep{}); err != nil {
				t.Errorf("Prune: %v", err)
			}
			for version, want := range was {
				q := newPlace(t)
				if st, err := r.Pull(t.Context(), q.Tree, statesync.PullOptions{Version: version}); err != nil || st.Failed > 0 || q.content() != want {
					t.Errorf("version %d: %+v, %v: %s", version, st, err, difference(want, q.content()))
				}
			}
		})
	}
}
