package limit_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/limit"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

const (
	minute = atoll.Duration(time.Minute)
	hour   = atoll.Duration(time.Hour)
)

// A recorder is a provider with these caps. It records the Spec of Create and creates nothing.
type recorder struct {
	atoll.Provider // nil: the tests call nothing else
	caps           atoll.Caps
	spec           atoll.Spec
}

func (r *recorder) Info() atoll.Info { return atoll.Info{Name: "recorder", Caps: r.caps} }

func (r *recorder) Create(_ context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	r.spec = *spec
	return nil, nil
}

// Fill sets the limits that a Spec lacks and the provider can enforce. It does not change other limits.
func TestFill(t *testing.T) {
	all := atoll.Caps{MemoryLimit: true, CPULimit: true, ProcessLimit: true, DiskLimit: true, IdleStop: true, Cache: true}
	given := atoll.Resources{Memory: 1 << 30, CPUs: 2, Processes: 99, Disk: 5 << 30}
	own := atoll.Resources{Memory: 3 << 20, CPUs: 0.5, Processes: 7, Disk: 8 << 20}
	lifted := atoll.Resources{Memory: atoll.Unlimited, CPUs: atoll.Unlimited, Processes: atoll.Unlimited, Disk: atoll.Unlimited}
	for _, tt := range []struct {
		name string
		caps atoll.Caps
		opts limit.Options
		spec atoll.Spec
		want atoll.Spec
	}{
		{"filled in", all, limit.Options{Resources: given, IdleStop: hour, Lifetime: hour}, atoll.Spec{}, atoll.Spec{Resources: given, IdleStop: hour, TTL: hour}},
		{"its own", all, limit.Options{Resources: given, IdleStop: hour, IdleRemove: true, Lifetime: hour}, atoll.Spec{Resources: own, IdleStop: minute, TTL: minute},
			atoll.Spec{Resources: own, IdleStop: minute, TTL: minute}},
		{"lifted", all, limit.Options{Resources: given, IdleStop: hour}, atoll.Spec{Resources: lifted, IdleStop: atoll.Never}, atoll.Spec{Resources: lifted, IdleStop: atoll.Never}},
		{"each by itself", all, limit.Options{Resources: given, IdleStop: hour, IdleRemove: true}, atoll.Spec{Resources: atoll.Resources{CPUs: 0.5}},
			atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30, CPUs: 0.5, Processes: 99, Disk: 5 << 30}, IdleStop: hour, IdleRemove: true}},
		{"removed when idle", all, limit.Options{IdleStop: hour}, atoll.Spec{IdleRemove: true}, atoll.Spec{IdleStop: hour, IdleRemove: true}},
		{"never idle", all, limit.Options{IdleStop: atoll.Never, IdleRemove: true}, atoll.Spec{}, atoll.Spec{IdleStop: atoll.Never}},
		{"cache paths", all, limit.Options{CachePaths: []string{"a", "b"}}, atoll.Spec{Cache: true, CachePaths: []string{"c", "b"}}, atoll.Spec{Cache: true, CachePaths: []string{"c", "b", "a"}}},
		{"cache paths of no cache", all, limit.Options{CachePaths: []string{"a", "b"}}, atoll.Spec{}, atoll.Spec{}},
		{"none configured", all, limit.Options{}, atoll.Spec{}, atoll.Spec{}},
		{"none enforced", atoll.Caps{}, limit.Options{Resources: given, IdleStop: hour, IdleRemove: true}, atoll.Spec{}, atoll.Spec{}},
		{"one enforced", atoll.Caps{ProcessLimit: true}, limit.Options{Resources: given}, atoll.Spec{}, atoll.Spec{Resources: atoll.Resources{Processes: 99}}},
		{"its own though not enforced", atoll.Caps{}, limit.Options{Resources: given}, atoll.Spec{Resources: own}, atoll.Spec{Resources: own}}, // the provider refuses it
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, spec := &recorder{caps: tt.caps}, tt.spec
			if _, err := limit.New(r, tt.opts).Create(t.Context(), &spec); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r.spec, tt.want) {
				t.Errorf("the provider was asked for %+v, want %+v", r.spec, tt.want)
			}
			if !reflect.DeepEqual(spec, tt.spec) {
				t.Errorf("Create changed the caller's Spec to %+v", spec)
			}
		})
	}
}

func newProvider(t *testing.T, lifetime atoll.Duration) atoll.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return limit.New(p, limit.Options{Lifetime: lifetime})
}

func TestLifetime(t *testing.T) {
	p, ctx := newProvider(t, hour), t.Context()
	defer p.Close()
	if _, err := p.Create(ctx, &atoll.Spec{TTL: hour + 1}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Create with more than the lifetime: %v", err)
	}
	made, err := p.Create(ctx, &atoll.Spec{TTL: minute})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Get(ctx, made.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ttl  atoll.Duration
		want atoll.Kind
	}{{30 * minute, ""}, {minute, ""}, {hour + minute, atoll.ErrInvalid}, {atoll.Never, atoll.ErrInvalid}, {0, atoll.ErrInvalid}} {
		for _, sb := range []atoll.Sandbox{made, sb} {
			if err := atoll.Extend(ctx, sb, tt.ttl); err != nil && atoll.KindOf(err) != tt.want || err == nil && tt.want != "" {
				t.Errorf("Extend by %s: %v, want %q", tt.ttl, err, tt.want)
			}
		}
	}
}

// Package limit changes specs only, and must set nothing that a provider does not support.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider { return newProvider(t, 0) }, providertest.Only("create", "errors", "caps"))
}

func TestForwards(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return limit.New(p, limit.Options{}) })
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return limit.New(p, limit.Options{Lifetime: hour}) },
		"Sandbox.Extend") // calls Status for the time of creation
}
