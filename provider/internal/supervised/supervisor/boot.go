package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
)

// What a keeper does to start a sandbox, before and after the steps of its engine.
var (
	first = []step{
		{"lock", (*keeper).takeLock},
	}
	last = []step{
		{"socket", (*keeper).listen},
		{"main process", (*keeper).runMain},
		{"record", (*keeper).saveRecord},
	}
)

type step struct {
	name string
	do   func(k *keeper, undo *Undo) error
}

// steps are all those of a start, in their order, around those of an engine.
func steps(engine []Step) []step {
	all := slices.Clone(first)
	for _, s := range engine {
		all = append(all, step{s.Name, func(k *keeper, undo *Undo) error { return s.Do(k.wanted, undo) }})
	}
	return append(all, last...)
}

// Steps are the names of what a keeper does to start a sandbox, in their order,
// around those of its engine: what Job.Fail can name.
func Steps(engine []Step) []string {
	var names []string
	for _, s := range steps(engine) {
		names = append(names, s.name)
	}
	return names
}

// boot takes the steps, as long as somebody wants the sandbox. When it fails,
// nothing is left.
func (k *keeper) boot() error {
	if err := detachMounts(); err != nil {
		return k.box.bootError(err)
	}
	var undo Undo
	for _, s := range steps(k.box.engine.Steps()) {
		err := k.planned(s.name)
		if err == nil && k.conn.HungUp() {
			err = atoll.Errorf("start", k.box.ID(), atoll.ErrInternal, "whoever wanted the sandbox has gone")
		}
		if err == nil {
			err = s.do(k, &undo)
		}
		if err != nil {
			_, _ = k.box.waitToEnd(context.Background()) // or its end would be noticed by those who watch, as a death
			undo.run()
			return k.box.bootError(err)
		}
	}
	return nil
}

// bootError is err, or what it means if only the engine or the system has told.
func (b *Box) bootError(err error) error {
	if e := (*atoll.Error)(nil); errors.As(err, &e) {
		return err
	}
	return atoll.E("start", b.ID(), bootKind(err), err)
}

// planned is the failure that a test has planned for that step, if any.
func (k *keeper) planned(step string) error {
	if k.box.Job.Fail != step {
		return nil
	}
	return atoll.Errorf("start", k.box.ID(), atoll.ErrUnavailable, "step %q failed as planned", step)
}

func (k *keeper) takeLock(*Undo) (err error) {
	if k.lock, err = k.box.dir.LockKeeper(k.box.ID()); err != nil {
		return atoll.E("start", k.box.ID(), atoll.ErrConflict, err)
	}
	return nil // it goes with the process, after all else that it holds
}

// bootKind finds the kind of an error that an engine may have given as text.
func bootKind(err error) atoll.Kind {
	if k := atoll.KindOf(err); k != atoll.ErrInternal {
		return k
	}
	switch text := err.Error(); {
	case errors.Is(err, syscall.ENOTDIR), strings.Contains(text, "not a directory"):
		return atoll.ErrInvalid
	case errors.Is(err, syscall.ENOSPC), strings.Contains(text, "no space left"):
		return atoll.ErrExhausted
	case errors.Is(err, syscall.EPERM), strings.Contains(text, "operation not permitted"):
		return atoll.ErrUnavailable
	}
	return atoll.ErrInternal
}

// listen serves the API of the one sandbox.
func (k *keeper) listen(undo *Undo) error {
	l, err := listen(k.box.Job.Dir)
	if err != nil {
		return err
	}
	k.handler, err = api.NewHandler(single{k.box}, api.Options{Log: k.box.Log})
	if err != nil {
		l.Close()
		return err
	}
	k.server = &http.Server{Handler: k.box.use.Counts(k.handler), ErrorLog: slog.NewLogLogger(k.box.Log.Handler(), slog.LevelError)}
	go func() { k.failed <- k.server.Serve(l) }()
	undo.Add(k.close)
	go k.box.watchTTL()
	go k.box.watchIdle()
	return nil
}

func (k *keeper) runMain(undo *Undo) error {
	dir := k.box.Job.Dir
	if err := asideMain(dir); err != nil {
		return err
	}
	undo.Add(func() { _ = backMain(dir) })
	return k.box.runMain(context.Background())
}

// saveRecord is not undone: from now on the sandbox is there, whatever becomes of
// who wanted it.
func (k *keeper) saveRecord(*Undo) error {
	b := k.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.save(); err != nil {
		return err
	}
	if err := dropMain(b.Job.Dir); err != nil {
		b.Log.Warn("the main process of the last life is still known", "err", err)
	}
	return nil
}
