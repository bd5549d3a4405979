package config

// MicroVM are the settings of the provider microvm. They can be set on every operating
// system, so that machines can share a file.
type MicroVM struct {
	Bundle string `yaml:"bundle" doc:"what sandboxes boot that name no image: see atoll image build; the one called debian is built when it is not there"`
	QEMU   string `yaml:"qemu" doc:"QEMU's program; that of this machine's architecture when empty"`
	Accel  string `yaml:"accel" form:"auto kvm tcg" doc:"what machines run on: auto is kvm where that works, else tcg, which is emulation"`
	Debug  bool   `yaml:"debug" doc:"have kernels say on their consoles all that they do"`
}

func defaultMicroVM() MicroVM { return MicroVM{Bundle: "debian", Accel: "auto"} }
