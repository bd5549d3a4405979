//go:build !linux

package stack

import (
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// imageTree returns nil: only Linux can unpack images.
func imageTree(*Builder, *slog.Logger) func(context.Context, string, atoll.PullPolicy, func(atoll.Progress)) (*bundle.Tree, error) {
	return nil
}
