package config

// Native has the settings of the provider native. They are valid on every operating system, so that machines can
// share a file.
type Native struct {
	HostPaths   []string `yaml:"host_paths" doc:"additional paths of this machine that are visible in the image host, read-only"`
	Nested      bool     `yaml:"nested" doc:"on Linux, let programs in sandboxes make namespaces and mounts, as bubblewrap and browsers do; then they can attack more of this machine's kernel"`
	HostNetwork bool     `yaml:"host_network" doc:"on macOS, allow --network on, which there gives programs the network of this machine: the internet, your local network and the machine's own ports"`
}
