package pool_test

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// Whatever call below fails, Create returns a sandbox or an error, and leaves
// nothing without an owner.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: fails each step of a creation in turn, which takes long")
	}
	t.Run("at once", func(t *testing.T) { testFaults(t, false) })
	t.Run("with a reserved id", func(t *testing.T) { testFaults(t, true) })
}

func testFaults(t *testing.T, reserved bool) {
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		dir := t.TempDir()
		below := openMock(t, mock.Options{})
		t.Cleanup(func() { closeProvider(t, below) })
		o := pool.Options{Entries: []pool.Entry{{Name: "plain", Min: 1, Spec: atoll.Spec{TTL: hour}}}}
		o.Hasten(0, time.Millisecond)
		p := waitStocked(t, newPool(t, providertest.Faulty(sharedBackend{atoll.ProviderLayer{Provider: below}}, plan), dir, o))
		spec := &atoll.Spec{Name: "web", TTL: hour / 2}
		if reserved {
			id, err := p.Reserve(t.Context(), spec)
			if err != nil || id == "" && !plan.Fired() {
				t.Errorf("Reserve returned %q, %v", id, err)
			}
			spec.ID = id
		}
		sb, err := p.Create(t.Context(), spec)
		if err == nil {
			if st, err := sb.Status(t.Context()); err == nil && (st.Spec.Name != "web" || time.Until(st.Expires) > 30*time.Minute) {
				t.Errorf("got status %+v", st)
			}
			for range 2 { // the caller may retry a failed removal
				if err = sb.Remove(t.Context(), atoll.RemoveVolumes()); err == nil {
					break
				}
			}
		}
		if err != nil && !plan.Fired() {
			t.Error(err)
		}
		_ = p.Close() // it logs what it could not remove
		s := openStore(dir)
		defer s.Close()
		next := newPool(t, sharedBackend{atoll.ProviderLayer{Provider: below}}, dir, pool.Options{})
		defer closeProvider(t, next)
		if err := pool.Sweep(next, t.Context()); err != nil {
			t.Error(err)
		}
		if ids := listIDs(t, below, atoll.Filter{}); len(ids) > 0 {
			t.Errorf("listed are %s", ids)
		}
		if all, err := s.Warm(t.Context(), "mock"); err != nil || len(all) > 0 {
			t.Errorf("recorded are %+v, %v", all, err)
		}
	})
}
