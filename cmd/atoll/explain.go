package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// explainTimeout limits the time for a better message.
const explainTimeout = 5 * time.Second

// references are the sandboxes that the user has named on the command line: what was typed, by id.
type references struct {
	mu    sync.Mutex
	typed map[string]string // guarded by mu
}

func (r *references) addReference(id, typed string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.typed == nil {
		r.typed = map[string]string{}
	}
	r.typed[id] = typed
}

// findReference returns the id of a sandbox, and what the user typed for it. name is either of them, or anything else
// if the user has named only one sandbox and any is true.
func (r *references) findReference(name string, any bool) (id, typed string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, typed := range r.typed {
		if id == name || typed == name || any && len(r.typed) == 1 {
			return id, typed, true
		}
	}
	return "", "", false
}

// explainError returns err with the names that the user typed instead of ids, and with the command that helps if a
// sandbox does not run.
func (c *connection) explainError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok && err.Error() == errors.Join(joined.Unwrap()...).Error() {
		errs := slices.Clone(joined.Unwrap())
		for i, e := range errs {
			errs[i] = c.explainError(ctx, e)
		}
		return errors.Join(errs...)
	}
	e, ok := err.(*atoll.Error)
	if !ok {
		return err
	}
	if id, idErr := atoll.NormalizeID(e.ID); e.Op == "create" && idErr == nil && id != "" { // no sandbox has the id
		return &atoll.Error{Op: e.Op, Kind: e.Kind, Err: causeOf(e)}
	}
	cause := causeOf(e).Error()
	paused := strings.HasSuffix(cause, "sandbox is paused: resume it first") || strings.HasSuffix(cause, "sandbox is paused: resume it")
	id, typed, ok := c.named.findReference(e.ID, paused)
	switch {
	case !ok:
		return err
	case typed == "": // of atoll run, which has not printed the id
		return &atoll.Error{Op: e.Op, Kind: e.Kind, Err: causeOf(e)}
	}
	advice := ""
	switch {
	case paused:
		advice = "; run atoll resume " + typed
		cause, _, _ = strings.Cut(cause, ": resume it")
	case e.Kind == atoll.ErrStopped && isAboutStop(cause):
		if advice = c.adviseStart(ctx, id, typed, &cause); advice == "" {
			return err
		}
	default:
		return &atoll.Error{Op: e.Op, ID: typed, Kind: e.Kind, Err: e.Err}
	}
	return &atoll.Error{Op: e.Op, ID: typed, Kind: e.Kind, Err: fmt.Errorf("%s%s", cause, advice)}
}

// adviseCreate returns the error of a creation with what the user can do about it, if something that the creation
// needs cannot be reached: the registry of the image, or the provider's engine.
func (c *connection) adviseCreate(spec *atoll.Spec, err error) error {
	e, ok := err.(*atoll.Error)
	switch {
	case !ok:
		return err
	case e.Op == "exec": // of the main process: no sandbox has the id
		return &atoll.Error{Op: e.Op, Kind: e.Kind, Err: causeOf(e)}
	case e.Kind != atoll.ErrUnavailable:
		return err
	}
	advice := "atoll doctor names what is missing"
	switch {
	case e.Op == "image" && !slices.Contains([]string{"", "gvisor", "native"}, spec.Provider):
		return err
	case e.Op == "image":
		advice = "without --image, sandboxes of gVisor and native use the programs of this machine"
	case e.Op != "create":
		return err
	case spec.Provider != "":
		advice = "atoll doctor --provider " + spec.Provider + " names what is missing"
	}
	return &atoll.Error{Op: e.Op, ID: e.ID, Kind: e.Kind, Err: fmt.Errorf("%w; %s", causeOf(e), advice)}
}

// isAboutStop reports whether cause says that a sandbox does not run, and not that a process or its output is gone.
func isAboutStop(cause string) bool {
	return (strings.HasPrefix(cause, "sandbox is stopped") || strings.HasPrefix(cause, "sandbox has failed")) && !strings.HasSuffix(cause, "are gone")
}

// adviseStart returns the command that starts a sandbox which is not running, or "" if it runs. If the sandbox has
// failed, it adds the reason to cause.
func (c *connection) adviseStart(ctx context.Context, id, typed string, cause *string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	sb, err := c.Get(ctx, id)
	if err != nil {
		return ""
	}
	st, err := sb.Status(ctx)
	switch {
	case err != nil || st.State == atoll.StateRunning || st.State == atoll.StatePaused:
		return ""
	case st.State == atoll.StateFailed && st.Reason != "" && *cause == atoll.ErrStopped.Error():
		*cause = "sandbox has failed: " + st.Reason
	}
	return "; run atoll start " + typed
}

// unknownSandbox returns the error for a name or an id that no sandbox has: with the nearest name, or the project that
// has the sandbox.
func (c *connection) unknownSandbox(ctx context.Context, ref string) error {
	if id, err := atoll.NormalizeID(ref); err == nil && id != "" || isPrefix(strings.ToLower(ref)) {
		return atoll.Errorf("", "", atoll.ErrNotFound, "no sandbox has the name or id %s; atoll ls lists them", ref)
	}
	all, err := c.List(ctx, atoll.Filter{})
	if err != nil {
		all = nil // the name is unknown nevertheless
	}
	var names []string
	for _, st := range all {
		switch {
		case st.Spec.Name == ref && st.Spec.Project != c.project:
			return atoll.Errorf("", "", atoll.ErrNotFound, "no sandbox of project %s is named %s; use --project %s", cmp.Or(c.project, "default"), ref, st.Spec.Project)
		case c.project == "" || st.Spec.Project == c.project:
			names = append(names, st.Spec.Name)
		}
	}
	advice := nearestTo(ref, names)
	if advice == "" {
		advice = "; atoll ls lists them"
	}
	return atoll.Errorf("", "", atoll.ErrNotFound, "no sandbox is named %s%s", ref, advice)
}
