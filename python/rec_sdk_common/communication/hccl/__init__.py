"""See rec_sdk_common.communication.hccl.hccl_info."""
