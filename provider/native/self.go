//go:build linux && !embedengine

package native

import (
	"sync"

	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	_ "github.com/seed46cd37a8/atoll/provider/native/engine" // takes over the processes of sandboxes
)

// ownEngine returns the path of the executable of supervisors: this program, which is an engine, too.
func ownEngine(string) (string, error) { return "/proc/self/exe", checkSelf() }

// checkSelf returns errDynamic if this program is linked dynamically: guests could not run in images without its libraries.
var checkSelf = sync.OnceValue(func() error {
	static, err := supervised.IsStatic("/proc/self/exe")
	if err == nil && !static {
		return errDynamic
	}
	return err
})

// slowEngine is a note for people about this program.
const slowEngine = "this atoll is its own engine, so that sandboxes start slower: install a release, or run make build"
