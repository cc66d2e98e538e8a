// Package deliverytest has conformance suites for the stores, sources and locks that plug
// into package delivery. [RunStore] checks stores of messages:
//
//	func TestMyStore(t *testing.T) {
//		deliverytest.RunStore(t, func(t *testing.T) deliverytest.StoreSetup {
//			mock := clock.NewMock()
//			dir := t.TempDir()
//			return deliverytest.StoreSetup{
//				Open: func() (store.Store, error) { return OpenMyStore(dir, mock) },
//				Wait: mock.Add,
//			}
//		})
//	}
//
// [RunSource] checks sources of messages:
//
//	func TestMySource(t *testing.T) {
//		deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
//			topic := newTopic(t) // empty
//			return deliverytest.Queue[string]{
//				Open:   func() (delivery.Source[string], error) { return OpenMySource(topic) },
//				Put:    topic.Publish,
//				Keeps:  true, // and more that the queue can do
//			}
//		}, strconv.Itoa)
//	}
//
// Run them with -race: some rules call from many goroutines. A suite cannot kill your
// process or cut its power.
package deliverytest
