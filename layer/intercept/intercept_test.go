package intercept_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func passCall(ctx context.Context, _ *intercept.Call, next intercept.Next) error { return next(ctx) }

func TestLayer(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return intercept.New(p, intercept.All, passCall) })
}

func open(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider { return intercept.New(open(t), intercept.All, passCall) },
		providertest.Only("create", "exec", "files"))
}

// A Func sees the arguments before the call and the results after it.
func TestCalls(t *testing.T) {
	var before, after []string
	p := intercept.New(open(t), intercept.All, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		before = append(before, c.Op)
		if c.On != nil && c.On.ID() != c.Sandbox {
			t.Errorf("%s: on %s, want %s", c.Op, c.On.ID(), c.Sandbox)
		}
		err := next(ctx)
		switch result := c.Result.(type) {
		case atoll.Sandbox:
			after = append(after, c.Name+" is "+result.ID())
		case atoll.Process:
			after = append(after, c.Arg.(*atoll.Command).Args[0]+" is "+result.ID())
		case atoll.FileInfo:
			after = append(after, strings.Join(append(c.Below, c.Name), "/")+" has "+strconv.FormatInt(result.Size, 10))
		}
		return err
	})
	ctx := t.Context()
	sb, err := p.Create(ctx, &atoll.Spec{Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := atoll.Files(sb).Write(ctx, "d/f", strings.NewReader("x"), atoll.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := atoll.SubFiles(atoll.Files(sb), "d").Stat(ctx, "f"); err != nil {
		t.Fatal(err)
	}
	proc, err := sb.Exec(ctx, &atoll.Command{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proc.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	wantBefore := []string{"Provider.Create", "FS.Write", "FS.Sub", "FS.Stat", "Sandbox.Exec", "Process.Wait"}
	if !slices.Equal(before, wantBefore) {
		t.Errorf("calls %q, want %q", before, wantBefore)
	}
	wantAfter := []string{"web is " + sb.ID(), "d/f has 1", "d/f has 1", "true is " + proc.ID()}
	if !slices.Equal(after, wantAfter) {
		t.Errorf("results %q, want %q", after, wantAfter)
	}
}

// A call that a Func refuses does not reach the provider, at any depth.
func TestRefused(t *testing.T) {
	refused := errors.New("refused")
	leaf := open(t)
	p := intercept.New(leaf, intercept.Providers, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		if c.Op != "Provider.Get" {
			return refused
		}
		return next(ctx)
	})
	if _, err := p.Create(t.Context(), &atoll.Spec{}); !errors.Is(err, refused) {
		t.Errorf("Create: %v, want %v", err, refused)
	}
	for _, err := range p.Watch(t.Context()) {
		if !errors.Is(err, refused) {
			t.Errorf("Watch: %v, want %v", err, refused)
		}
	}
	if probe := atoll.ProbeProvider(t.Context(), p); probe.OK || probe.Reason != "refused" {
		t.Errorf("Probe: %+v", probe)
	}
	if all, err := leaf.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("there are %v, %v", all, err)
	}
	sb, err := leaf.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), sb.ID()); err != nil {
		t.Error(err)
	} else if err := got.Stop(t.Context(), 0); err != nil {
		t.Errorf("Stop, which isn't intercepted at this depth: %v", err)
	}
}

// A Func may replace a result by another value of its type. The call panics on a value of another type.
func TestReplacedResults(t *testing.T) {
	var replacement any
	p := intercept.New(open(t), intercept.All, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		err := next(ctx)
		if c.Op == "Provider.List" {
			c.Result = replacement
		}
		return err
	})
	replacement = []atoll.Status{{ID: "other"}}
	if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) != 1 || all[0].ID != "other" {
		t.Errorf("List: %v, %v", all, err)
	}
	replacement = "text"
	defer func() {
		if recover() == nil {
			t.Error("List did not panic on a text as its result")
		}
	}()
	all, err := p.List(t.Context(), atoll.Filter{})
	t.Errorf("List: %v, %v", all, err)
}
