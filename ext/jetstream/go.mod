module github.com/weirflow/weir/ext/jetstream

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/nats-io/nats.go v1.55.0
	github.com/nats-io/nuid v1.0.1
	github.com/stretchr/testify v1.12.1
	github.com/weirflow/weir v0.0.0
)

require (
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/nats-io/nkeys v0.4.17 // indirect
	github.com/reugn/go-streams v0.13.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/weirflow/weir => ../../
