//go:build linux

package gvisor

import (
	"errors"
	"sync"

	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
)

// Static returns an error unless an executable is linked statically, as a Helper must be.
// It checks each path only once.
func Static(path string) error {
	if err, ok := checked.Load(path); ok {
		err, _ := err.(error)
		return err
	}
	err := checkStatic(path)
	if err == nil || err == errDynamic { // another error may be temporary
		checked.Store(path, err)
	}
	return err
}

var (
	checked    sync.Map // path -> errDynamic or nil
	errDynamic = errors.New("gVisor needs a statically linked binary: build with CGO_ENABLED=0, or use make")
)

func checkStatic(path string) error {
	static, err := supervised.IsStatic(path)
	if err == nil && !static {
		return errDynamic
	}
	return err
}
