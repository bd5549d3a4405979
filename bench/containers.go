//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

const (
	ourContainer = "atoll, provider docker, through the API"
	dockerCLI    = "docker's command line"
	copyIn       = "atoll, into the sandbox"
	copyOut      = "atoll, out of the sandbox"
	dockerCpIn   = "docker cp, in"
	dockerCpOut  = "docker cp, out"
)

// measureContainers compares the provider docker with docker's command line, on the same engine.
func (b *bench) measureContainers(ctx context.Context) (err error) {
	e, err := b.startEngine(ctx, "containers")
	if e != nil {
		defer func() { err = errors.Join(err, e.stopDaemon()) }()
	}
	var missing missingError
	if errors.As(err, &missing) {
		b.table.missing = append(b.table.missing, missing.Error())
		return nil
	}
	if err != nil {
		return err
	}
	stopLive, err := e.startLive(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopLive()) }()
	s, err := startServer(ctx, b, "containers-state", "ATOLL_PROVIDER=docker", "ATOLL_DOCKER_HOST="+e.socket, "ATOLL_DOCKER_IMAGE="+image)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	live, err := s.Create(ctx, &atoll.Spec{})
	if err != nil {
		return err
	}
	if err := b.compareContainerCommands(ctx, e, s, live); err != nil {
		return err
	}
	if err := b.compareContainerFiles(ctx, e, live); err != nil {
		return err
	}
	if err := b.compareContainerEvents(ctx, e, s); err != nil {
		return err
	}
	return b.measureReconcile(ctx, s)
}

// reconcileCount is the number of sandboxes that one reconciliation compares with their records.
const reconcileCount = 50

// measureReconcile measures a reconciliation without differences.
func (b *bench) measureReconcile(ctx context.Context, s *server) error {
	for {
		all, err := s.List(ctx, atoll.Filter{})
		if err != nil {
			return err
		}
		if len(all) >= reconcileCount {
			break
		}
		if _, err := s.Create(ctx, &atoll.Spec{}); err != nil {
			return err
		}
	}
	row := fmt.Sprintf("%d sandboxes", reconcileCount)
	return b.compareMethods(ctx, "containers: reconcile", []goal{{row: row, millis: 3000}}, []method{
		{row, timeCall(func(ctx context.Context) error {
			found, err := registry.Reconcile(ctx, s, registry.ReconcileOptions{})
			if err == nil && (found.Healthy != reconcileCount || len(found.Findings) > 0) {
				err = fmt.Errorf("%d of %d sandboxes are healthy, the findings are %v", found.Healthy, reconcileCount, found.Findings)
			}
			return err
		})},
	})
}

// compareContainerCommands compares commands and creations.
func (b *bench) compareContainerCommands(ctx context.Context, e *engine, s *server, live atoll.Sandbox) error {
	err := b.compareMethods(ctx, "containers: command in a live one", []goal{{row: ourContainer, than: dockerCLI, most: 1.0 / 5}}, []method{
		{ourContainer, timeCall(func(ctx context.Context) error {
			_, err := atoll.Output(ctx, live, &atoll.Command{Args: echoArgs})
			return err
		})},
		{dockerCLI, func(ctx context.Context) (time.Duration, error) {
			return untilEnd(e.dockerCommand(ctx, append([]string{"exec", "live"}, echoArgs...)...))
		}},
	})
	if err != nil {
		return err
	}
	return b.compareMethods(ctx, "containers: create until it runs", []goal{{row: ourContainer, than: dockerCLI, most: 1.25}}, []method{
		{ourContainer, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			sb, err := s.Create(ctx, &atoll.Spec{})
			took := time.Since(start)
			if err == nil {
				err = sb.Remove(ctx, atoll.RemoveVolumes())
			}
			return took, err
		}},
		{dockerCLI, func(ctx context.Context) (time.Duration, error) {
			took, err := untilEnd(e.dockerCommand(ctx, "run", "--detach", "--network=none", "--name=made", image, "sleep", "86400"))
			if err == nil {
				_, err = untilEnd(e.dockerCommand(ctx, "rm", "--force", "made"))
			}
			return took, err
		}},
	})
}

// compareContainerFiles compares copies into and out of a container.
func (b *bench) compareContainerFiles(ctx context.Context, e *engine, live atoll.Sandbox) error {
	source, target := filepath.Join(b.dir, "source"), filepath.Join(b.dir, "target")
	if err := os.WriteFile(source, make([]byte, fileSize), 0o600); err != nil {
		return err
	}
	if err := sendFile(ctx, live, source, "file"); err != nil {
		return err
	}
	if _, err := untilEnd(e.dockerCommand(ctx, "cp", source, "live:/root/file")); err != nil {
		return err
	}
	return b.compareMethods(ctx, "containers: a file of 64 MiB", []goal{
		{row: copyIn, than: dockerCpIn, most: 1}, {row: copyOut, than: dockerCpOut, most: 1},
	}, []method{
		{copyIn, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			err := sendFile(ctx, live, source, "sent")
			took := time.Since(start)
			return took, errors.Join(err, atoll.Files(live).Remove(ctx, "sent", false))
		}},
		{dockerCpIn, func(ctx context.Context) (time.Duration, error) {
			took, err := untilEnd(e.dockerCommand(ctx, "cp", source, "live:/root/sent"))
			if err == nil {
				_, err = untilEnd(e.dockerCommand(ctx, "exec", "live", "rm", "/root/sent"))
			}
			return took, err
		}},
		{copyOut, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			err := fetchFile(ctx, live, "file", target)
			took := time.Since(start)
			return took, errors.Join(err, os.Remove(target))
		}},
		{dockerCpOut, func(ctx context.Context) (time.Duration, error) {
			took, err := untilEnd(e.dockerCommand(ctx, "cp", "live:/root/file", target))
			return took, errors.Join(err, os.Remove(target))
		}},
	})
}

// compareContainerEvents measures the time from the pause of a sandbox to its event in Atoll's watch and in
// docker's.
func (b *bench) compareContainerEvents(ctx context.Context, e *engine, s *server) (err error) {
	const ours, engines = "atoll, watch", "docker events"
	sb, err := s.Create(ctx, &atoll.Spec{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan time.Time)
	go func() {
		for ev, err := range s.Watch(ctx) {
			if err == nil && ev.Status.ID == sb.ID() && ev.Status.State == atoll.StatePaused {
				seen <- time.Now()
			}
		}
	}()
	reported := make(chan time.Time)
	events := e.dockerCommand(ctx, "events", "--filter", "event=pause")
	events.Stdout = writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), sb.ID()) {
			reported <- time.Now()
		}
		return len(p), nil
	})
	if err := events.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = events.Wait() // the cancelled context killed it
	}()
	time.Sleep(time.Second) // until both watchers listen
	var other time.Duration
	return b.compareMethods(ctx, "containers: until a pause is known", nil, []method{
		{ours, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			if err := atoll.Pause(ctx, sb); err != nil {
				return 0, err
			}
			var took time.Duration
			for took == 0 || other == 0 {
				select {
				case t := <-seen:
					took = t.Sub(start)
				case t := <-reported:
					other = t.Sub(start)
				case <-time.After(waitLimit):
					return 0, fmt.Errorf("no event within %s", waitLimit)
				}
			}
			return took, atoll.Resume(ctx, sb)
		}},
		{engines, func(context.Context) (took time.Duration, _ error) {
			took, other = other, 0
			return took, nil
		}},
	})
}

// A writerFunc is an io.Writer that calls itself.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
