package system

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// hostDir stands for a directory of Options.HostDirs in texts.
const hostDir = "[host]"

// A pathHider replaces directories of the host in texts.
type pathHider struct{ dirs []string }

// newPathHider returns a pathHider for dirs. A directory below another one is replaced as a whole.
func newPathHider(dirs []string) pathHider {
	dirs = slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return len(strings.Trim(dir, `/\`)) < 2 })
	slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) })
	return pathHider{dirs}
}

// hidesFrom reports whether the caller must not learn the paths of the host.
func (h pathHider) hidesFrom(ctx context.Context) bool {
	return len(h.dirs) > 0 && auth.AccountFrom(ctx).IsRestricted()
}

// hideText returns text without the directories. The rest of each path remains, since it names the file.
func (h pathHider) hideText(text string) string {
	for _, dir := range h.dirs {
		text = strings.ReplaceAll(text, dir, hostDir)
	}
	return text
}

// hideValue returns v, a result of a call or the error of a stream, without the directories in its reasons.
func (h pathHider) hideValue(v any) any {
	switch v := v.(type) {
	case atoll.Status:
		v.Reason = h.hideText(v.Reason)
		return v
	case []atoll.Status:
		for i := range v {
			v[i].Reason = h.hideText(v[i].Reason)
		}
	case atoll.Event:
		v.Status.Reason = h.hideText(v.Status.Reason)
		return v
	case error:
		return h.hideError(v)
	}
	return v
}

// hideError returns err without the directories in its text. Its kind, operation, object and waiting time remain.
func (h pathHider) hideError(err error) error {
	if err == nil || h.hideText(err.Error()) == err.Error() {
		return err
	}
	var e *atoll.Error
	if !errors.As(err, &e) || e.Err == nil {
		return atoll.E("", "", atoll.KindOf(err), errors.New(h.hideText(err.Error())))
	}
	cause := errors.New(h.hideText(e.Err.Error()))
	if after, known := atoll.RetryAfter(err); known {
		cause = atoll.WithRetryAfter(cause, after.Truncate(time.Millisecond))
	}
	return atoll.E(e.Op, h.hideText(e.ID), atoll.KindOf(err), cause)
}
