package remote_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider { return newProvider(newCloud(t), nil) },
		providertest.Reopen(func(t *testing.T, p atoll.Provider) atoll.Provider { return newProvider(p.(*provider).cloud, nil) }),
		providertest.FailSteps(func(t *testing.T, step func(string) error) atoll.Provider { return newProvider(newCloud(t), step) }),
		providertest.Count(50))
}

// A start whose lease another program has taken ends, and starts nothing.
func TestLeaseIsLost(t *testing.T) {
	c := newCloud(t)
	p := newProvider(c, nil)
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{NoStart: true})
	if err != nil {
		t.Fatal(err)
	}
	c.onLaunch = func(ctx context.Context) error {
		b := backend{p}
		r, err := b.Find(ctx, "test", sb.ID(), remote.Stored)
		if err == nil {
			err = b.Update(ctx, r, func(n *remote.Note) error { n.Starter = "another"; return nil })
		}
		if err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	if err := sb.Start(t.Context()); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("Start: %v, want a conflict", err)
	}
	r, err := backend{p}.Find(t.Context(), "test", sb.ID(), remote.Stored)
	if err != nil || r.Note.Starter != "another" || r.Note.State == atoll.StateRunning {
		t.Errorf("the record is %+v, %v, want the claim of the other program", r, err)
	}
}

// A stop that is given up before it reaches the guest does not explain a later end.
func TestStopIsGivenUp(t *testing.T) {
	c := newCloud(t)
	p := newProvider(c, nil)
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	c.onConnect = func(ctx context.Context) error {
		giveUp()
		<-ctx.Done()
		return ctx.Err()
	}
	if err := sb.Stop(ctx, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop: %v, want that it is canceled", err)
	}
	r, err := backend{p}.Find(t.Context(), "test", sb.ID(), remote.Latest)
	if err != nil || r.State != atoll.StateRunning || r.Note.Stopping {
		t.Errorf("the record is %+v, %v, want it running and not stopping", r, err)
	}
}

// A program that ends while it removes an expired sandbox leaves it to another one, with its data volume.
func TestExpiryIsCutShort(t *testing.T) {
	c := newCloud(t)
	p := newProvider(c, nil)
	sb, err := p.Create(t.Context(), &atoll.Spec{TTL: atoll.Duration(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan struct{})
	c.onDropVolume = func(ctx context.Context) error {
		close(cut)
		<-ctx.Done()
		return ctx.Err()
	}
	if err := atoll.Extend(t.Context(), sb, atoll.Duration(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	<-cut
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	c.onDropVolume = nil
	other := newProvider(c, nil)
	defer other.Close()
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		all, err := other.List(t.Context(), atoll.Filter{})
		volumes, verr := atoll.Volumes(t.Context(), other, "")
		if err == nil && verr == nil && len(all)+len(volumes) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left: %v, %v; %v, %v", all, err, volumes, verr)
		}
	}
}
