package pool_test

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// Whatever call below fails, whoever asks has a sandbox or an error, and nothing is
// left that nobody has.
func TestFaults(t *testing.T) {
	t.Run("at once", func(t *testing.T) { faults(t, false) })
	t.Run("by an id that is reserved", func(t *testing.T) { faults(t, true) })
}

func faults(t *testing.T, reserved bool) {
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		dir := t.TempDir()
		below := openMock(t, mock.Options{})
		t.Cleanup(func() { closed(t, below) })
		o := pool.Options{Entries: []pool.Entry{{Name: "plain", Min: 1, Spec: atoll.Spec{TTL: hour}}}}
		o.Hasten(0, time.Millisecond)
		p := stocked(t, around(t, providertest.Faulty(unclosed{atoll.ProviderLayer{Provider: below}}, plan), dir, o))
		spec := &atoll.Spec{Name: "web", TTL: hour / 2}
		if reserved {
			id, err := p.Reserve(t.Context(), spec)
			if err != nil || id == "" && !plan.Fired() {
				t.Errorf("reserved is %q: %v", id, err)
			}
			spec.ID = id
		}
		sb, err := p.Create(t.Context(), spec)
		if err == nil {
			if st, err := sb.Status(t.Context()); err == nil && (st.Spec.Name != "web" || time.Until(st.Expires) > 30*time.Minute) {
				t.Errorf("the status is %+v", st)
			}
			for range 2 { // a removal that fails can be tried again
				if err = sb.Remove(t.Context(), atoll.RemoveVolumes()); err == nil {
					break
				}
			}
		}
		if err != nil && !plan.Fired() {
			t.Error(err)
		}
		_ = p.Close() // that it could not remove something is told in the log
		s := openStore(dir)
		defer s.Close()
		next := around(t, unclosed{atoll.ProviderLayer{Provider: below}}, dir, pool.Options{})
		defer closed(t, next)
		if err := pool.Sweep(next, t.Context()); err != nil {
			t.Error(err)
		}
		if ids := list(t, below, atoll.Filter{}); len(ids) > 0 {
			t.Errorf("there are %s", ids)
		}
		if all, err := s.Warm(t.Context(), "mock"); err != nil || len(all) > 0 {
			t.Errorf("written down are %+v, %v", all, err)
		}
	})
}
