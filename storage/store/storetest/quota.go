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

func in(project string, r atoll.Resources) *store.Record {
	x := record("scope", "")
	x.Spec.Project, x.Spec.Resources = project, r
	return x
}

func quotas(t *testing.T, open func(name string) Store) {
	const most, tries = 4, 16
	stores := []Store{open("a"), open("a")}
	room := store.Room{Quota: store.Quota{Memory: most << 30}}
	var made, refused, others atomic.Int32
	var work sync.WaitGroup
	for i := range tries {
		work.Go(func() {
			_, err := stores[i%2].Insert(t.Context(), in("full", atoll.Resources{Memory: 1 << 30}), "x", room)
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
				if _, err := stores[i%2].Insert(t.Context(), in("other", atoll.Resources{Memory: 1 << 30}), "x", room); err != nil {
					t.Errorf("Insert of another project: %v", err)
					return
				}
				others.Add(1)
			})
		}
	}
	work.Wait()
	if made.Load() != most || refused.Load() != tries-most || others.Load() != most {
		t.Errorf("%d were inserted, %d refused, and %d of another project; want %d, %d and %d", made.Load(), refused.Load(), others.Load(), most, tries-most, most)
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
	if _, err := stores[0].Insert(t.Context(), in("full", atoll.Resources{Memory: 1 << 30}), "x", room); err != nil {
		t.Errorf("Insert where there is room: %v", err)
	}
}

func quotaCounts(t *testing.T, open func(name string) Store) {
	s := open("a")
	for _, r := range []atoll.Resources{{Memory: 3 << 30, CPUs: 1.5, Processes: 100, Disk: 1 << 30}, {CPUs: 1}} { // the rest is the usual
		if _, err := s.Insert(t.Context(), in("web", r), "", store.Room{}); err != nil {
			t.Fatal(err)
		}
	}
	one := atoll.Resources{Memory: 1 << 30, CPUs: 0.5, Processes: 10, Disk: 1 << 30}
	for _, tt := range []struct {
		name  string
		quota store.Quota
		asked atoll.Resources
		want  atoll.Kind
		text  string
	}{
		{"sandboxes", store.Quota{Sandboxes: 2}, one, atoll.ErrExhausted, "may have 2 sandboxes, of which 2 are used, and this asks for 1"},
		{"memory", store.Quota{Memory: 5 << 30}, one, atoll.ErrExhausted, "may have 5g memory, of which 5g are used, and this asks for 1g"},
		{"cpus", store.Quota{CPUs: 2.75}, one, atoll.ErrExhausted, "may have 2.75 cpus, of which 2.5 are used, and this asks for 0.5"},
		{"processes", store.Quota{Processes: 1130}, one, atoll.ErrExhausted, "may have 1130 processes, of which 1124 are used"},
		{"disk", store.Quota{Disk: 5 << 30}, one, atoll.ErrExhausted, "may have 5g disk"},
		{"any amount of memory", store.Quota{Memory: 99 << 30}, atoll.Resources{Memory: atoll.Unlimited}, atoll.ErrInvalid, "quota of memory: say how much"},
		{"all CPUs", store.Quota{CPUs: 99}, atoll.Resources{}, atoll.ErrInvalid, "quota of cpus: say how much"},
		{"just enough", store.Quota{Sandboxes: 3, Memory: 6 << 30, CPUs: 3, Processes: 1134, Disk: 6 << 30}, one, "", ""},
	} {
		_, err := s.Insert(t.Context(), in("web", tt.asked), "", store.Room{Quota: tt.quota})
		if atoll.KindOf(err) != tt.want || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q: %s", tt.name, err, tt.want, tt.text)
		}
		var q *store.QuotaError
		if tt.want == atoll.ErrExhausted && (!errors.As(err, &q) || q.Quota != tt.name || q.Project != "web") {
			t.Errorf("%s: it is the quota %+v", tt.name, q)
		}
	}
	if _, err := s.Insert(t.Context(), in("odd", atoll.Resources{Memory: atoll.Unlimited}), "", store.Room{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Insert(t.Context(), in("odd", one), "", store.Room{Quota: store.Quota{Memory: 99 << 30}})
	if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), "any amount are used") {
		t.Errorf("beside one without a limit: %v", err)
	}
}
