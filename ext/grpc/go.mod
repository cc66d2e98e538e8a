module github.com/weirflow/weir/ext/grpc

go 1.26

require (
	github.com/stretchr/testify v1.12.1
	github.com/weirflow/weir v0.0.0
	go.uber.org/goleak v1.3.0
	google.golang.org/grpc v1.76.0
	google.golang.org/protobuf v1.36.6
)

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/reugn/go-streams v0.13.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.42.0 // indirect
	golang.org/x/sys v0.34.0 // indirect
	golang.org/x/text v0.27.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250804133106-a7a43d27e69b // indirect
)

replace github.com/weirflow/weir => ../../
