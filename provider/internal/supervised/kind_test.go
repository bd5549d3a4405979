package supervised

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A stock learns limits at the second request for them, forgets them after an hour, and has one sandbox of each before it has more of
// one.
func TestKinds(t *testing.T) {
	now := time.Now()
	s := &stock{opts: Stock{Max: 3}, kinds: []*kind{newKind(atoll.Resources{}, newDemand(3, now.Add(-time.Minute)))}}
	small := atoll.Resources{Memory: 1 << 28}
	if k := s.findKind(small, false); k != nil || len(s.kinds) != 1 {
		t.Errorf("a request that does not count: %+v", s.kinds)
	}
	if k := s.findKind(small, true); k != nil {
		t.Errorf("the first request finds %+v", k)
	}
	first, k := s.kinds[0], s.findKind(small, true)
	if k == nil || k.limits != small || k.want != 0 {
		t.Fatalf("the second request finds %+v", k)
	}
	s.countRequest(k, true, true)
	check := func(what string, wantFirst, wantSmall int, next *kind) {
		t.Helper()
		share := shareStock(s.kinds, s.opts.Max, now)
		if got := chooseKind(s.kinds, share, now); share[first] != wantFirst || share[k] != wantSmall || got != next {
			t.Errorf("%s: %d and %d sandboxes, and %+v next, want %d, %d and %+v", what, share[first], share[k], got, wantFirst, wantSmall, next)
		}
	}
	check("after the second request", 1, 1, first)
	s.countRequest(k, true, true)
	s.countRequest(k, true, true)
	check("after many", 1, 2, first)
	s.opts.Max = 1
	check("with room for one", 1, 0, first)
	first.asked = now.Add(-2 * calmTime)
	check("with room for one, and none asks for the default", 0, 1, k)
	s.opts.Max = 3
	check("none asks for the default", 1, 2, k)
	s.countRequest(first, true, false)
	check("after one for the default", 1, 2, first)
	first.retry = now.Add(time.Minute)
	check("after a boot of it that failed", 1, 2, k)
	k.retry = now.Add(time.Hour)
	check("after another one", 1, 2, first)

	s.kinds = ageKinds(s.kinds, now.Add(quietTime+time.Minute))
	if len(s.kinds) != 1 || s.kinds[0] != first {
		t.Errorf("after an hour: %+v", s.kinds)
	}
	for i := range 2 * maxKinds {
		s.findKind(atoll.Resources{Processes: i + 1}, true)
	}
	if len(s.kinds) != maxKinds || s.kinds[0] != first || s.kinds[maxKinds-1].limits.Processes != 2*maxKinds {
		t.Errorf("after many kinds: %+v", s.kinds)
	}
}
