package config

// GVisor are the settings of the provider gvisor. They can be set on every
// operating system, so that machines can share a file.
type GVisor struct {
	HostPaths []string `yaml:"host_paths" doc:"more paths of this machine that the image host shows, read-only"`
	Platform  string   `yaml:"platform" form:"systrap kvm" doc:"how gVisor intercepts system calls"`
	Debug     bool     `yaml:"debug" doc:"keep gVisor's own logs in the sandbox's directory"`
}

func defaultGVisor() GVisor { return GVisor{Platform: "systrap"} }
