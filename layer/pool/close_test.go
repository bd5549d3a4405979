package pool_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// Who is just being given a sandbox when the pool is closed has it, or none is left.
// One that comes back because its taker gave up is not one too many.
func TestCloseWhileTaking(t *testing.T) {
	dir, at, on := t.TempDir(), make(chan struct{}), make(chan struct{})
	below := openMock(t, mock.Options{})
	defer closed(t, below)
	o := plain(1)
	o.SetStep(func(name string) {
		if name == "healthy" {
			at <- struct{}{}
			<-on
		}
	})
	p := stocked(t, around(t, unclosed{atoll.ProviderLayer{Provider: below}}, dir, o))
	var all sync.WaitGroup
	var sb atoll.Sandbox
	all.Go(func() { sb, _ = p.Create(t.Context(), &atoll.Spec{Name: "web"}) })
	<-at
	if r := report(t, p); r.Pools[0].Booting > 0 || r.Pools[0].Warm > 0 {
		t.Errorf("while one is taken the pool is %+v", r.Pools[0])
	}
	all.Go(func() { closed(t, p) })
	time.Sleep(10 * time.Millisecond) // for Close to begin
	close(on)
	all.Wait()
	ids := list(t, below, atoll.Filter{})
	if sb == nil || len(ids) != 1 || ids[0] != sb.ID() {
		t.Errorf("there are %s, and somebody has %v", ids, sb)
	}
}
