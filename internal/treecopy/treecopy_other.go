//go:build !linux

package treecopy

import (
	"context"
	"errors"
)

// Copy returns errors.ErrUnsupported.
func Copy(context.Context, string, string) error { return errors.ErrUnsupported }

// CopyLayer returns errors.ErrUnsupported.
func CopyLayer(context.Context, string, string) error { return errors.ErrUnsupported }

// Sync does nothing, because Copy makes no copies.
func Sync(string) error { return nil }
