package pool_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// Close waits for a Create that has popped a sandbox. The pool does not replace a
// popped sandbox, because it may come back.
func TestCloseWhileTaking(t *testing.T) {
	dir, at, on := t.TempDir(), make(chan struct{}), make(chan struct{})
	below := openMock(t, mock.Options{})
	defer closeProvider(t, below)
	o := plainOptions(1)
	o.SetStep(func(name string) {
		if name == "healthy" {
			at <- struct{}{}
			<-on
		}
	})
	p := waitStocked(t, newPool(t, sharedBackend{atoll.ProviderLayer{Provider: below}}, dir, o))
	var all sync.WaitGroup
	var sb atoll.Sandbox
	all.Go(func() { sb, _ = p.Create(t.Context(), &atoll.Spec{Name: "web"}) })
	<-at
	if r := poolReport(t, p); r.Pools[0].Booting > 0 || r.Pools[0].Warm > 0 {
		t.Errorf("while Create has popped one, got pool %+v", r.Pools[0])
	}
	all.Go(func() { closeProvider(t, p) })
	time.Sleep(10 * time.Millisecond) // for Close to begin
	close(on)
	all.Wait()
	ids := listIDs(t, below, atoll.Filter{})
	if sb == nil || len(ids) != 1 || ids[0] != sb.ID() {
		t.Errorf("listed are %s, and Create returned %v", ids, sb)
	}
}
