// Package distconsts says where Dagger's engine finds what is around it, and stands for
// the package of that path, which is not to be had by itself: here that is what testengine
// starts the engine in, and there are no SDKs in it for modules.
package distconsts

// What the engine uses.
const (
	RuncPath                         = "runc" // in PATH
	DaggerInitPath                   = ""     // there is none: programs are started with NoInit
	EngineDefaultStateDir            = "state"
	EngineContainerBuiltinContentDir = "content"
	EngineContainerName              = "dagger-engine"
)

// What modules of Dagger's are made with, which no test has.
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
