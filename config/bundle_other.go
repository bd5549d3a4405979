//go:build !linux

package config

import (
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// imageTree returns nil: only Linux can unpack images.
func imageTree(*Config, *slog.Logger) func(context.Context, string, atoll.PullPolicy, func(atoll.Progress)) (*bundle.Tree, error) {
	return nil
}
