package storetest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

func recordIn(project string, r atoll.Resources) *store.Record {
	x := newRecord("scope", "")
	x.Spec.Project, x.Spec.Resources = project, r
	return x
}

func checkQuotaEnforced(t *testing.T, open func(name string) Store) {
	const most, tries = 4, 16
	stores := []Store{open("a"), open("a")}
	room := store.Limits{Quota: store.Quota{Memory: most << 30}}
	var made, refused, others atomic.Int32
	var work sync.WaitGroup
	for i := range tries {
		work.Go(func() {
			_, err := stores[i%2].Insert(t.Context(), recordIn("full", atoll.Resources{Memory: 1 << 30}), "x", room)
			switch {
			case err == nil:
				made.Add(1)
			case atoll.KindOf(err) == atoll.ErrExhausted && errors.Is(err, store.ErrLimit):
				refused.Add(1)
			default:
				t.Errorf("Insert: %v", err)
			}
		})
		if i < most {
			work.Go(func() {
				if _, err := stores[i%2].Insert(t.Context(), recordIn("other", atoll.Resources{Memory: 1 << 30}), "x", room); err != nil {
					t.Errorf("Insert of another project: %v", err)
					return
				}
				others.Add(1)
			})
		}
	}
	work.Wait()
	if made.Load() != most || refused.Load() != tries-most || others.Load() != most {
		t.Errorf("%d inserts succeeded, %d failed, and %d succeeded in another project; want %d, %d and %d", made.Load(), refused.Load(), others.Load(), most, tries-most, most)
	}
	all, err := stores[0].Records(t.Context())
	if err != nil || len(all) != 2*most {
		t.Fatalf("%d records, %v; want %d", len(all), err, 2*most)
	}
	for _, r := range all {
		if r.Spec.Project == "full" {
			if err := stores[1].Delete(t.Context(), r, true); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if _, err := stores[0].Insert(t.Context(), recordIn("full", atoll.Resources{Memory: 1 << 30}), "x", room); err != nil {
		t.Errorf("Insert below the quota: %v", err)
	}
}

func checkQuotaCounts(t *testing.T, open func(name string) Store) {
	s := open("a")
	for _, r := range []atoll.Resources{{Memory: 3 << 30, CPUs: 1.5, Processes: 100, Disk: 1 << 30}, {CPUs: 1}} { // the rest has default limits
		if _, err := s.Insert(t.Context(), recordIn("web", r), "", store.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	one := atoll.Resources{Memory: 1 << 30, CPUs: 0.5, Processes: 10, Disk: 1 << 30}
	for _, tt := range []struct {
		name      string
		quota     store.Quota
		requested atoll.Resources
		want      atoll.Kind
		text      string
	}{
		{"sandboxes", store.Quota{Sandboxes: 2}, one, atoll.ErrExhausted, "quota of sandboxes: requested 1, used 2 of 2"},
		{"memory", store.Quota{Memory: 5 << 30}, one, atoll.ErrExhausted, "quota of memory: requested 1g, used 5g of 5g"},
		{"cpus", store.Quota{CPUs: 2.75}, one, atoll.ErrExhausted, "quota of cpus: requested 0.5, used 2.5 of 2.75"},
		{"processes", store.Quota{Processes: 1130}, one, atoll.ErrExhausted, "quota of processes: requested 10, used 1124 of 1130"},
		{"disk", store.Quota{Disk: 5 << 30}, one, atoll.ErrExhausted, "quota of disk: requested 1g, used 5g of 5g"},
		{"unlimited memory", store.Quota{Memory: 99 << 30}, atoll.Resources{Memory: atoll.Unlimited}, atoll.ErrInvalid, "quota of memory: request a limited amount"},
		{"all CPUs", store.Quota{CPUs: 99}, atoll.Resources{}, atoll.ErrInvalid, "quota of cpus: request a limited amount"},
		{"exactly the quota", store.Quota{Sandboxes: 3, Memory: 6 << 30, CPUs: 3, Processes: 1134, Disk: 6 << 30}, one, "", ""},
	} {
		_, err := s.Insert(t.Context(), recordIn("web", tt.requested), "", store.Limits{Quota: tt.quota})
		if atoll.KindOf(err) != tt.want || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q: %s", tt.name, err, tt.want, tt.text)
		}
		var q *store.QuotaError
		if tt.want == atoll.ErrExhausted && (!errors.As(err, &q) || q.Quota != tt.name || q.Project != "web") {
			t.Errorf("%s: the error has the quota %+v", tt.name, q)
		}
	}
	if _, err := s.Insert(t.Context(), recordIn("odd", atoll.Resources{Memory: atoll.Unlimited}), "", store.Limits{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Insert(t.Context(), recordIn("odd", one), "", store.Limits{Quota: store.Quota{Memory: 99 << 30}})
	if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), "used unlimited") {
		t.Errorf("Insert beside a sandbox without a limit: %v", err)
	}
}
