package config

// GVisor has the settings of the provider gvisor. They are valid on every operating system, so that machines can
// share a file.
type GVisor struct {
	HostPaths []string `yaml:"host_paths" doc:"additional paths of this machine that are visible in the image host, read-only"`
	Platform  string   `yaml:"platform" form:"systrap kvm" doc:"how gVisor intercepts system calls"`
	Debug     bool     `yaml:"debug" doc:"write gVisor's own logs to the directory of the sandbox"`
}

func defaultGVisor() GVisor { return GVisor{Platform: "systrap"} }
