package providertest

// engineGroups are the groups whose promises provider/internal/remote keeps for every backend, or the guest
// beyond what another group shows of the way to it.
var engineGroups = []string{"expiry", "output", "time", "tree", "sub", "errors", "steps", "patience"}

// enginePromises are such promises of groups in which a backend has a part.
var enginePromises = []string{
	"create/Create neither changes nor keeps the spec",
	"create/the zero Spec gets a random id of 32 hex digits",
	"create/Create and Get accept an id with hyphens and drop the hyphens",
	"create/Create refuses an id that is taken",
	"create/the context of Create bounds the call, not the sandbox",
	"restart/a sandbox found after a restart has the same abilities",
	"restart/a failed sandbox can be started again",
	"watch/the caller may break off at once or later",
	"watch/a slow reader blocks nobody, and gets an error when it missed events",
	"watch/many Watches at once see the same events",
	"remove/a second Remove, also by another handle, does nothing",
	"remove/ten concurrent Removes all succeed",
	"remove/every method of a removed sandbox returns ErrNotFound",
	"remove/a process that ended with its sandbox keeps reporting so",
	"remove/Stop kills a process that ignores SIGTERM after the grace",
	"remove/Stop of a stopped sandbox, or of one never started, does nothing",
	"remove/Start of a running sandbox does nothing",
	"remove/every call returns when its context has ended",
}

// OverEngine skips the promises that the engine of a provider keeps alone. Use it for the providers over
// provider/internal/remote, whose own test keeps all promises.
func OverEngine() Option {
	return func(c *config) {
		const reason = "provider/internal/remote keeps it for every backend"
		for _, name := range engineGroups {
			c.without[name] = reason
		}
		for _, name := range enginePromises {
			c.except[name] = reason
		}
	}
}
