// Package distconsts replaces the package of this name in Dagger's engine, which is not published as a
// module. It has the paths that testengine sets up for the engine, and no SDKs for Dagger modules.
package distconsts

// Paths and names that the engine uses.
const (
	RuncPath                         = "runc" // in PATH
	DaggerInitPath                   = ""     // none: tests start programs with NoInit
	EngineDefaultStateDir            = "state"
	EngineContainerBuiltinContentDir = "content"
	EngineContainerName              = "dagger-engine"
)

// Constants for Dagger modules, which no test uses.
const (
	AlpineImage                        = "alpine"
	AlpineVersion                      = "3"
	BusyboxImage                       = "busybox"
	GolangImage                        = "golang"
	OCIVersionAnnotation               = "org.opencontainers.image.version"
	GoSDKManifestDigestEnvName         = "DAGGER_GO_SDK_MANIFEST_DIGEST"
	PythonSDKManifestDigestEnvName     = "DAGGER_PYTHON_SDK_MANIFEST_DIGEST"
	TypescriptSDKManifestDigestEnvName = "DAGGER_TYPESCRIPT_SDK_MANIFEST_DIGEST"
)
