// Results that depend on rounding, compared with those of an H200. numerics.ptx: nvcc -ptx -arch=compute_90 numerics.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__device__ const unsigned FA[128] = {0x00000000u, 0x3e5bd9d7u, 0xbefb600au, 0x80000000u, 0x0becd7b0u, 0x444b6defu, 0x3f800000u, 0x7f150524u, 0x46045350u, 0xbf800000u, 0x1e398f10u, 0xc1a40000u, 0x7f800000u, 0x3f570821u, 0x41800000u, 0xff800000u, 0xc03755f9u, 0x3e7d8ebeu, 0x7fc00000u, 0x3f7c891bu, 0xc5da2ca8u, 0x00000001u, 0xc1880000u, 0x41c40000u, 0x80000001u, 0xc0600000u, 0xc0000000u, 0x007fffffu, 0x3dfb94b5u, 0x24e4e25au, 0x00800000u, 0xc007b462u, 0xc5954d92u, 0x7f7fffffu, 0xc1480000u, 0x3ce4dc4bu, 0xff7fffffu, 0xc5293484u, 0x3f667a9bu, 0x3f000000u, 0x3e4c1a63u, 0x3f7237e4u, 0x40200000u, 0xc1800000u, 0xc1780000u, 0x4b000001u, 0x460781fcu, 0x804c25d6u, 0x4f000000u, 0x3fc00000u, 0xc5d99a2eu, 0xcf000000u, 0x41080000u, 0x45acce6bu, 0x5f000000u, 0x816bee06u, 0xc1180000u, 0x33800000u, 0xc5ec7c7du, 0xc5b391a2u, 0x3e126916u, 0x460d6855u, 0xc4ab3209u, 0x3c9f9aa9u, 0xc0d00000u, 0x4030efffu, 0xc60fe0f2u, 0x3f51a89bu, 0xc006a489u, 0x2eefa279u, 0x45280ca4u, 0x3c3d2cd3u, 0xc5911671u, 0x430b91edu, 0x441b6de0u, 0xbfb03d23u, 0x3f03a4e6u, 0x3f281101u, 0xc570456du, 0x3fff3231u, 0x3f3daaeau, 0xd75d6769u, 0x0b94af3au, 0xf637a468u, 0xbfc443ddu, 0xc60208c1u, 0x3f5129d0u, 0x3f055370u, 0x41a40000u, 0xc0e00000u, 0x3f370af6u, 0x41b80000u, 0x45c390ddu, 0x3eb8aea6u, 0x44925170u, 0x40e00000u, 0xc01cb1beu, 0x3e52248bu, 0xbd14b6feu, 0x13d5316fu, 0x3f1158d5u, 0x3dcbd0a8u, 0xbfa09f4au, 0x403d6d67u, 0x81b1c025u, 0xbf2dcd0au, 0x41580000u, 0x3e6cefd3u, 0x7ddfcbc9u, 0x3fae79f3u, 0xbf86bf59u, 0xbf000000u, 0xc172b298u, 0x45d12c29u, 0x3e4267cau, 0x41200000u, 0x40600000u, 0x45349d07u, 0x48208231u, 0xbf101005u, 0x40d00000u, 0x45fde981u, 0x2cb8d14cu, 0x3e4efe45u, 0xbf33f605u, 0x40e00000u, 0x3dbda41au, 0xc4875aa1u};
__device__ const unsigned FB[128] = {0x3f4de348u, 0x00000000u, 0xc1780000u, 0x3f38c3a5u, 0x80000000u, 0x4dc4ac8cu, 0xc38b48a2u, 0x3f800000u, 0xc578192fu, 0x3f3f37eau, 0xbf800000u, 0xbfba6d63u, 0x3f966454u, 0x7f800000u, 0x3b164943u, 0x3e3fcf09u, 0xff800000u, 0xbfdc7482u, 0xbff29b85u, 0x7fc00000u, 0xaa181345u, 0x3e8f42cau, 0x00000001u, 0x3edd6a00u, 0x3e45a8a8u, 0x80000001u, 0xc433bf37u, 0xc0800000u, 0x007fffffu, 0xc03e8d3cu, 0x3f74ef61u, 0x00800000u, 0x4606b480u, 0x41c80000u, 0x7f7fffffu, 0x3f65b3e1u, 0x3e55575bu, 0xff7fffffu, 0x3f38cae4u, 0x47868e4au, 0x3f000000u, 0x30312932u, 0x3f264edau, 0x40200000u, 0xc60fa30du, 0xbfc00000u, 0x4b000001u, 0x9eb4e92eu, 0xc60e72adu, 0x4f000000u, 0xbf903bd2u, 0x41780000u, 0xcf000000u, 0x3f110775u, 0x45e3a76bu, 0x5f000000u, 0xc5fff1ebu, 0xc00e16eeu, 0x33800000u, 0x3d896a04u, 0x3fc2bb1au, 0x3f1b8e9bu, 0x4584b1a5u, 0xc1580000u, 0xbfd8788bu, 0xc1b40000u, 0x3f56948eu, 0x3f4730a8u, 0x40600000u, 0xc614f1fau, 0x3eeaa4dcu, 0x3edc7779u, 0x0a68253au, 0x4365a279u, 0xc607818cu, 0x45f10f31u, 0xc0900000u, 0x45c54444u, 0x4510d532u, 0x3e8e6ffeu, 0x1d75cc23u, 0x857de96du, 0x64edfce5u, 0xbf3edd1bu, 0xc0d00000u, 0xfbeb0a98u, 0x3e18f313u, 0xc1280000u, 0x3f6b2cafu, 0x442a90c8u, 0x451ae975u, 0x104c968au, 0x02f1679eu, 0x3f6fe987u, 0x3d7c0553u, 0xc1c40000u, 0x41000000u, 0xc1600000u, 0x3f7e7aceu, 0x3fa56d17u, 0xc46d9056u, 0xe42a872fu, 0x41940000u, 0x403534d8u, 0xc6177dc9u, 0x53add817u, 0x41980000u, 0x3bd11daeu, 0x3e9d9184u, 0x3f3c58f6u, 0xc0150877u, 0xc034255eu, 0xc1480000u, 0x3f417a50u, 0xc016de14u, 0x3ff9a573u, 0x4b61b0fdu, 0x4858079eu, 0xc0e00000u, 0x3fbca9b8u, 0xbf6b57e6u, 0x6fa176acu, 0x3eb21353u, 0xc0400000u, 0x460ab597u, 0x40c00000u, 0x3fdc5d59u, 0x3e531047u};
__device__ const unsigned FC[128] = {0x41be6dbfu, 0x41b80000u, 0x40600000u, 0xc1100000u, 0xc1200000u, 0x00000000u, 0xb92101a2u, 0xc002347eu, 0x80000000u, 0x323991afu, 0xc50b92d0u, 0x3f800000u, 0x40200000u, 0x41a80000u, 0xbf800000u, 0x3ed6d33eu, 0x3f5974ffu, 0x7f800000u, 0x3fd5a44du, 0xc1480000u, 0xff800000u, 0x3ebd655bu, 0x00000000u, 0x7fc00000u, 0x3c5a0b39u, 0x94865d85u, 0x00000001u, 0xc5e7b021u, 0x39da457au, 0x80000001u, 0x453b0268u, 0xc51ad07bu, 0x007fffffu, 0x9f94c755u, 0x62969d5au, 0x00800000u, 0xc1100000u, 0x3bcfecf9u, 0x7f7fffffu, 0xc8020ffdu, 0xbfe86b61u, 0xff7fffffu, 0xc39c4b30u, 0xdce58d7du, 0x3f000000u, 0xad0ad387u, 0x9c13aef3u, 0x40200000u, 0x207c9f6cu, 0x8ddb2bc1u, 0x4b000001u, 0xc1000000u, 0xc5b94af6u, 0x4f000000u, 0x3f0b9f68u, 0x40a00000u, 0xcf000000u, 0x3f333ff9u, 0xbfdccc87u, 0x5f000000u, 0xc95ab050u, 0x40200000u, 0x33800000u, 0x3f134842u, 0x4560f416u, 0xc4daf50fu, 0x4017fa00u, 0x3f5e9ac6u, 0x4589182au, 0x40225b3eu, 0xbf9eddaeu, 0x41940000u, 0x40c00000u, 0xc5258b04u, 0x3f74324eu, 0x41c80000u, 0x41a00000u, 0xc1780000u, 0x3f635c19u, 0xe567dabbu, 0x3f90cf44u, 0xc5e094d7u, 0x3f0c3fc6u, 0xc601aaeau, 0x3fdcf230u, 0x3f8871c4u, 0x3fdfffabu, 0xe59d2552u, 0x44df5253u, 0x3f000000u, 0x400911afu, 0xbf451e10u, 0xc1400000u, 0x3f6ced43u, 0x97d6b91bu, 0x4003ffadu, 0xc02c6abeu, 0xec125488u, 0x418c0000u, 0xc4812434u, 0xbffbcf0cu, 0x3f0369e0u, 0xc14473cau, 0xa70b407eu, 0xc5eae908u, 0x460177e1u, 0xd534c087u, 0x40154382u, 0x3ea52750u, 0xc52775bcu, 0x250bc6e7u, 0x0681edafu, 0x3fe9953au, 0x43869395u, 0x1e832d72u, 0x3f6cd207u, 0x45f79feau, 0xc6173db8u, 0xf192ccb5u, 0x4600be83u, 0xc1480000u, 0x9bca4f90u, 0xc1500000u, 0xbf936c03u, 0x3de2d393u, 0x7a0365dbu, 0xfc57b67cu, 0x40600000u};
__device__ const unsigned long long DA[128] = {0x0000000000000000ull, 0x3fdd4dc0d4102bc0ull, 0x3fc76e9c0d3b71e0ull, 0x8000000000000000ull, 0x400031224598acfcull, 0x3ff4d7676625ccd0ull, 0x3ff0000000000000ull, 0xbfe0000000000000ull, 0x0d4da084f0f88227ull, 0xbff0000000000000ull, 0x565ded8ddcd8223aull, 0xc127dcfa19bc68d8ull, 0x7ff0000000000000ull, 0xc006599dd4ce6d9cull, 0x037fb23b8532b56cull, 0xfff0000000000000ull, 0x1fb9396f70a25794ull, 0x411cccd6c430a738ull, 0x7ff8000000000000ull, 0x3fc82abb7832fe3cull, 0xf3bb6654dca332dfull, 0x0000000000000001ull, 0xc12abb7c8bc5fe34ull, 0x4115afda1c28cd28ull, 0x8000000000000001ull, 0x3fe683164c8253c2ull, 0x65c220e77f7545c0ull, 0x000fffffffffffffull, 0x3fe4be106949b8bcull, 0xc118694a1977ec6cull, 0x0010000000000000ull, 0x0c252a09068c1935ull, 0xd35f847e84777780ull, 0x7fefffffffffffffull, 0x3fe25ea8209debf4ull, 0x410e6bc2a3082238ull, 0xffefffffffffffffull, 0x8245fb9cfd80eda2ull, 0x3ffe5a03c623a770ull, 0x3fe0000000000000ull, 0x3ff438a29449d2e8ull, 0xc0b0b55a1a1e6e80ull, 0x4004000000000000ull, 0x096ce7d57999c0a8ull, 0x24d868cb52a47582ull, 0x4330000000000001ull, 0x4127d632cc6c0c96ull, 0x3fc63645050964e8ull, 0x41e0000000000000ull, 0xc1210126b14ce487ull, 0xc003cd38def58dc4ull, 0xc1e0000000000000ull, 0x3fd4acc96bc1c620ull, 0xc12500aa737ebc26ull, 0x43e0000000000000ull, 0x3fee6e17b5e76074ull, 0x4008000000000000ull, 0x01a56e1fc2f8f359ull, 0x4000e3a0339f5932ull, 0xbfe521ec5ef16e40ull, 0xc004bb6c50a0c849ull, 0x3ced82830bd15e5aull, 0x67c5dd84e95bf7c2ull, 0x3fe6856afacc07d3ull, 0x5cabbeaec47039eaull, 0xc0060eed75927045ull, 0xc025000000000000ull, 0x6331ca3a6bab2609ull, 0xbff48307292fe91cull, 0x3fd61f58adff06eeull, 0x3fe0dfd7dc5c178cull, 0x4004a667700ab338ull, 0xc121f23c0da840ceull, 0x65629e7fe7f05714ull, 0x1b369611b82f6151ull, 0xc024000000000000ull, 0xc030800000000000ull, 0x581f0f396a56a2daull, 0xc00091ed42686c29ull, 0x3fd1f9fcf26e6506ull, 0x400637ee00ad8cd2ull, 0x4034800000000000ull, 0x6f2a6038f4ec72b1ull, 0x4111a3d5eaf2951cull, 0x1934bdb52cbc5bcaull, 0x4035000000000000ull, 0x5b32fd97d3489d54ull, 0x3fbb73d29223cb68ull, 0xc02e000000000000ull, 0x3fe84970d1ecf330ull, 0xc037000000000000ull, 0x3fe077c872d7d610ull, 0xbff0000000000000ull, 0x4020000000000000ull, 0x40039e2fb5c11c6cull, 0x3eff3eb5eebcbe34ull, 0x1ded91dbfa60b03dull, 0xa9155bbc259c6be5ull, 0xc02b000000000000ull, 0x21a87e0eed57298cull, 0xc032000000000000ull, 0xc030800000000000ull, 0x3c583e1470344590ull, 0x4038800000000000ull, 0x0aaf5a005f52208cull, 0x76e901e1923abb65ull, 0xd76ad77ebed4c56eull, 0x4035000000000000ull, 0xc1119c1dea17df00ull, 0xbff78ee443bf6c87ull, 0x3fc33b38d8de3144ull, 0x3fefe99f06c2117cull, 0xc007566ac3d9f8b5ull, 0x3fd91fc756be612aull, 0x4126c471b3540eb4ull, 0x3fd71a6155d1662cull, 0xc025000000000000ull, 0x24c64fcbabc4f4dbull, 0x3fda7b203b877f20ull, 0x4120bde9bb0c85feull, 0x4037800000000000ull, 0x2c90f79965689030ull, 0x412dcf93126212aaull, 0xabe09cbfdef84f5aull, 0x480ba060e724cfe4ull, 0xc034000000000000ull, 0x3fe616c6d1b68c56ull, 0xc123d27be800effdull};
__device__ const unsigned long long DB[128] = {0x41a485acabba679full, 0x0000000000000000ull, 0xbfee7f495ebe6044ull, 0x06ef0532bfd3b946ull, 0x8000000000000000ull, 0xbfe348f4b1d4e2a8ull, 0xc038000000000000ull, 0x3ff0000000000000ull, 0x3fcd70bdcbdb79e4ull, 0xa6d1ee174f2b304bull, 0xbff0000000000000ull, 0xc000c582f21016e0ull, 0xc12202557149c81aull, 0x7ff0000000000000ull, 0x400726e2a528b4d0ull, 0xc002d34d1a0a3260ull, 0xfff0000000000000ull, 0x37e5377b6784b198ull, 0x3773b4d87fa456c7ull, 0x7ff8000000000000ull, 0x41164faae8ca0f78ull, 0x411cbf9a8e7bec5cull, 0x0000000000000001ull, 0x2ce1719678d4123aull, 0x1b395d483a781efdull, 0x8000000000000001ull, 0x3fbc3fc1c3dad680ull, 0x4023000000000000ull, 0x000fffffffffffffull, 0xc035000000000000ull, 0x3fd119ef5015b046ull, 0x0010000000000000ull, 0xc103bd2ddd7200c0ull, 0x3fe0089d03b483a9ull, 0x7fefffffffffffffull, 0x4024000000000000ull, 0x411e0df3ad946018ull, 0xffefffffffffffffull, 0x4023000000000000ull, 0xc008000000000000ull, 0x3fe0000000000000ull, 0x6eff286419a7a6b6ull, 0x1521f7f282d1eef0ull, 0x4004000000000000ull, 0xc11992df6736de0cull, 0x2169eb7fae2045c4ull, 0x4330000000000001ull, 0xbffedeeaec524f4aull, 0x3fc355f3dd11d950ull, 0x41e0000000000000ull, 0x6e7fa49d31f1583bull, 0x3feb869594487a83ull, 0xc1e0000000000000ull, 0x3fefd677e9e4f808ull, 0xbfaad16f4c0d5100ull, 0x43e0000000000000ull, 0x087907d6bee89712ull, 0xc11411d968b3d88cull, 0x01a56e1fc2f8f359ull, 0xc022000000000000ull, 0x3fd3a360ea6f984cull, 0x3faaadcc4d47c830ull, 0x7713344a2ae9b144ull, 0x022db43d5073c6a9ull, 0xc028000000000000ull, 0x6f42e1d50ade10a6ull, 0x7782e1f55807440bull, 0x41225a67ef238e7aull, 0xc124d0d38c190840ull, 0x3a1b4ca2bbcfcf48ull, 0x412678ba10790c58ull, 0xc016000000000000ull, 0x3fef5cf61cec5b38ull, 0xc119815d3d56fb10ull, 0x1c6a8518abd8bd07ull, 0x400517b50925501eull, 0x3fe2af62ee29b18full, 0xbff5f7a036c96619ull, 0x3fe5024f2533398aull, 0xc018000000000000ull, 0xbfd149605b686c78ull, 0xb24e3a02a5956772ull, 0x6d454e5c2c028908ull, 0x42e34f4b26274c4full, 0x3ef7e5ab77c2a4b1ull, 0xc024000000000000ull, 0x59992067e86bffdaull, 0xc037800000000000ull, 0xc027000000000000ull, 0x5090a8d9086e0758ull, 0xcf8043c4158136b8ull, 0x42e25e793b77aeb4ull, 0xbffff47b4a2f685eull, 0x4038800000000000ull, 0x54c694e7742f4d47ull, 0xf73b5f6ccda7f29cull, 0x412aae32fe323b42ull, 0xc018000000000000ull, 0x41102d3a1658fe2cull, 0x592e87a7afddd363ull, 0x3fe40e610ebb3ea6ull, 0x3feac29e672acd7bull, 0x3f90befd79ba15c0ull, 0x3fe173f3f8dac8e4ull, 0x359e3b9e7ee251edull, 0x3fe411984c2a84a9ull, 0x3fccb298f59ff2a8ull, 0xc1162815035a7846ull, 0x690745ebf92169bcull, 0xc112078095106e0eull, 0x6a80c960aa932d48ull, 0x091cf056555a64e3ull, 0x3fad2c6bf8038ef0ull, 0x3fe36d295affd010ull, 0xc0016ca27bf523deull, 0x402e000000000000ull, 0x408a3b21bcc2cf12ull, 0x401a000000000000ull, 0xc125facc423a17ceull, 0x7c9f788748b8604bull, 0xbffe08b37cbb57a5ull, 0x4014000000000000ull, 0xc014000000000000ull, 0x3fe8158f384e4c2dull, 0x4580301c0e152939ull, 0xc023000000000000ull, 0x410916853d35e5c8ull, 0x6d26761a36c9fb9cull};
__device__ const unsigned long long DC[128] = {0xc02b000000000000ull, 0x3fd27ac341118a74ull, 0x4ad67579d26d8926ull, 0x41250b69e37c7a58ull, 0x4128500396711694ull, 0x0000000000000000ull, 0x3fff20ada61bdc24ull, 0x3c037e88f601c17eull, 0x8000000000000000ull, 0x7bd575ba1c4cb9aeull, 0xc01c000000000000ull, 0x3ff0000000000000ull, 0x3fbcc4d88ccdf118ull, 0xbffa46e8efffdce9ull, 0xbff0000000000000ull, 0x3fe63624548ed48cull, 0x62233801bb1edb5eull, 0x7ff0000000000000ull, 0xd5e0e3d30354db0cull, 0x0714e4578a35e4abull, 0xfff0000000000000ull, 0x78a4a483e25f0550ull, 0x4123a5dc07282572ull, 0x7ff8000000000000ull, 0x3ffa5805b4c9f67cull, 0xbffb74079f43f19aull, 0x0000000000000001ull, 0xbfb7c3d92c5d7060ull, 0x592eba42ef45d369ull, 0x8000000000000001ull, 0x3fde0d5c35894826ull, 0x49e01411dcc8dc1dull, 0x000fffffffffffffull, 0xc026000000000000ull, 0x3fea9e677ddf99acull, 0x0010000000000000ull, 0xc039000000000000ull, 0x08613df017696fbfull, 0x7fefffffffffffffull, 0xc028000000000000ull, 0x4006deafbe84a348ull, 0xffefffffffffffffull, 0x3fe628a72f11c81full, 0x40073813cc71c178ull, 0x3fe0000000000000ull, 0xf157d2fc9e6472a3ull, 0x552fb1a961e4b3c8ull, 0x4004000000000000ull, 0xc0075e496586877full, 0x57b6278de3cb1e3bull, 0x4330000000000001ull, 0x7d4b09679d8d805aull, 0x38ab6dc0dc853796ull, 0x41e0000000000000ull, 0xf5e955e641d33661ull, 0x3fc22dc17a7f7360ull, 0xc1e0000000000000ull, 0x3ff55ad139ec9ffcull, 0x3fc62c04671e6cb8ull, 0x43e0000000000000ull, 0x55d2875057909bfcull, 0x3fc2636e57b3c778ull, 0x01a56e1fc2f8f359ull, 0xb8ff07248acc654cull, 0xbfe9af0e9402ae00ull, 0x3fd89668ced3397eull, 0x3fd82787beb0ff92ull, 0x3fe6c4cafdf7f7f8ull, 0x3faf15f247926610ull, 0xc026000000000000ull, 0x3fe556dcd4e29b68ull, 0x3fcb2f6a319fbe2cull, 0x73f8c133ce862449ull, 0x401e000000000000ull, 0x4143bed2538b8d76ull, 0x6329d795252113bdull, 0x3f90077c4c89dca0ull, 0xc02a000000000000ull, 0xbffcdc9ad8ba0903ull, 0x40d6c273495542a0ull, 0xc8caae61ffe4970bull, 0xc123aeee836f81cdull, 0x479799dde31fadf9ull, 0x3ff8000000000000ull, 0x3fc578c283bfbc0cull, 0x23df4f985f7d2be4ull, 0xd1d14ed0ea2ec18cull, 0x68bd94bf2899bdc3ull, 0x723f16a41dd940d3ull, 0x18a92002a8c3949cull, 0x0adad6a07fa4e550ull, 0x2cf71e4c3af3609full, 0x3fddcad44faafc0eull, 0x68bbf9358ae412d6ull, 0xc111210d4b1f07deull, 0x3fec4e54bd9fe304ull, 0x412b002e7985e216ull, 0x7ca5ea516c3bfa16ull, 0x41247acf58e4ebfeull, 0x6e399e3670e8eba6ull, 0xe5a752b532c4e260ull, 0x4122367336c1e6dcull, 0x4119c4dc81e75108ull, 0x5953d3cf85b71280ull, 0x2996f49c4394a922ull, 0xc030000000000000ull, 0xb1505cb8d6c47259ull, 0x3fe2c2486c9be762ull, 0xc1206752bb6547e4ull, 0x4037000000000000ull, 0x1c8834666e94e480ull, 0xe6ddf138313cf5a0ull, 0x7c2b75e1ed5cc654ull, 0x3ffc4224b9a92d68ull, 0xbff3d3e1db693d8aull, 0xc000000000000000ull, 0x21c7bc877e2227d6ull, 0x3ff8000000000000ull, 0x0cac4e6e58e9551eull, 0x3d12103002205b56ull, 0x3fe6ea1760d7ce60ull, 0x63b49bc55bd1d352ull, 0xc12803aad675215aull, 0x3fe6a727915a2525ull, 0xc12760ab6ea40d08ull, 0x410967385811f0b0ull, 0x3ff7e7625252eb00ull, 0x178523cb24a07b91ull};

#define F(x) __int_as_float((int)x)
#define D(x) __longlong_as_double((long long)x)
// A slot holds one result of all threads; NaNs of 32 bits become one pattern.
__device__ void put(unsigned long long *o, int &n, unsigned long long v) { o[128 * n++ + threadIdx.x] = v; }
__device__ void put(unsigned long long *o, int &n, unsigned v) { put(o, n, (unsigned long long)v); }
__device__ void put(unsigned long long *o, int &n, int v) { put(o, n, (unsigned long long)(unsigned)v); }
__device__ void put(unsigned long long *o, int &n, long long v) { put(o, n, (unsigned long long)v); }
__device__ void put(unsigned long long *o, int &n, float v) { put(o, n, isnan(v) ? 0x7fffffffu : __float_as_uint(v)); }
__device__ void put(unsigned long long *o, int &n, double v) { put(o, n, isnan(v) ? 0x7fffffffffffffffull : (unsigned long long)__double_as_longlong(v)); }
__device__ void put(unsigned long long *o, int &n, __half v) { put(o, n, __hisnan(v) ? 0x7fffu : (unsigned)__half_as_ushort(v)); }
__device__ void put(unsigned long long *o, int &n, __nv_bfloat16 v) { put(o, n, __hisnan(v) ? 0x7fffu : (unsigned)__bfloat16_as_ushort(v)); }
#define P(x) put(o, n, x)

extern "C" {
__global__ void exact_f32(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    float a = F(FA[t]), b = F(FB[t]), c = F(FC[t]);
    P(__fadd_rn(a, b)); P(__fadd_rz(a, b)); P(__fadd_rd(a, b)); P(__fadd_ru(a, b));
    P(__fmul_rn(a, b)); P(__fmul_rz(a, b)); P(__fmul_rd(a, b)); P(__fmul_ru(a, b));
    P(__fmaf_rn(a, b, c)); P(__fmaf_rz(a, b, c)); P(__fmaf_rd(a, b, c)); P(__fmaf_ru(a, b, c));
    P(__fdiv_rn(a, b)); P(__fdiv_rz(a, b)); P(__fdiv_rd(a, b)); P(__fdiv_ru(a, b));
    P(__fsqrt_rn(a)); P(__fsqrt_rz(a)); P(__fsqrt_rd(a)); P(__fsqrt_ru(a));
    P(__frcp_rn(a)); P(__frcp_rz(a)); P(__frcp_rd(a)); P(__frcp_ru(a));
    P(__fsub_rn(a, b)); P(__fsub_ru(a, b)); P(fminf(a, b)); P(fmaxf(a, b)); P(fabsf(a)); P(-a); P(copysignf(a, b));
    P(rintf(a)); P(truncf(a)); P(floorf(a)); P(ceilf(a)); P(roundf(a)); P(__saturatef(a)); P(fmodf(a, b)); P(remainderf(a, b)); P(ldexpf(a, t - 64));
    P((unsigned)(a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a > b) + 32 * (a >= b) + 64 * (isnan(a) || isnan(b)));
    float r;
    asm("add.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); P(r);
    asm("mul.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); P(r);
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c)); P(r);
    asm("min.ftz.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); P(r);
}
__global__ void exact_f64(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    double a = D(DA[t]), b = D(DB[t]), c = D(DC[t]);
    P(__dadd_rn(a, b)); P(__dadd_rz(a, b)); P(__dadd_rd(a, b)); P(__dadd_ru(a, b));
    P(__dmul_rn(a, b)); P(__dmul_rz(a, b)); P(__dmul_rd(a, b)); P(__dmul_ru(a, b));
    P(__fma_rn(a, b, c)); P(__fma_rz(a, b, c)); P(__fma_rd(a, b, c)); P(__fma_ru(a, b, c));
    P(__ddiv_rn(a, b)); P(__ddiv_rz(a, b)); P(__ddiv_rd(a, b)); P(__ddiv_ru(a, b));
    P(__dsqrt_rn(a)); P(__dsqrt_rz(a)); P(__dsqrt_rd(a)); P(__dsqrt_ru(a));
    P(__drcp_rn(a)); P(__drcp_rz(a)); P(__drcp_rd(a)); P(__drcp_ru(a));
    P(fmin(a, b)); P(fmax(a, b)); P(fabs(a)); P(-a); P(copysign(a, b)); P(rint(a)); P(trunc(a)); P(floor(a)); P(ceil(a)); P(round(a)); P(ldexp(a, t * 8 - 500));
    P((unsigned)(a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a > b) + 32 * (a >= b) + 64 * (isnan(a) || isnan(b)));
}
__global__ void exact_convert(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    float f = F(FA[t]); double d = D(DA[t]); long long l = DB[t]; unsigned long long u = DC[t]; int i = FB[t]; unsigned w = FC[t];
    P(__float2int_rn(f)); P(__float2int_rz(f)); P(__float2int_rd(f)); P(__float2int_ru(f)); P(__float2uint_rn(f)); P(__float2uint_rz(f)); P(__float2uint_rd(f)); P(__float2uint_ru(f));
    P(__float2ll_rn(f)); P(__float2ll_rz(f)); P(__float2ll_rd(f)); P(__float2ull_rz(f)); P(__float2ull_ru(f));
    P(__double2int_rn(d)); P(__double2int_rz(d)); P(__double2uint_rd(d)); P(__double2uint_ru(d)); P(__double2ll_rn(d)); P(__double2ll_rz(d)); P(__double2ull_rz(d)); P(__double2ull_ru(d));
    P(__double2float_rn(d)); P(__double2float_rz(d)); P(__double2float_rd(d)); P(__double2float_ru(d)); P((double)f);
    P(__int2float_rn(i)); P(__int2float_rz(i)); P(__int2float_rd(i)); P(__int2float_ru(i)); P(__uint2float_rn(w)); P(__uint2float_ru(w));
    P(__ll2float_rn(l)); P(__ll2float_rz(l)); P(__ll2float_rd(l)); P(__ull2float_ru(u)); P(__ull2float_rn(u)); P(__int2double_rn(i)); P(__uint2double_rn(w));
    P(__ll2double_rn(l)); P(__ll2double_rz(l)); P(__ull2double_rd(u)); P(__ull2double_ru(u));
    P((unsigned)(unsigned char)f); P((unsigned)(unsigned short)f); P((int)(signed char)i); P((int)(short)i); P((long long)(signed char)l); P((unsigned)(bool)f);
    P(__float2half_rn(f)); P(__float2half_rz(f)); P(__float2half_rd(f)); P(__float2half_ru(f)); P(__double2half(d)); P(__half2float(__ushort_as_half(w))); P(__half2int_rn(__ushort_as_half(w))); P(__half2short_rz(__ushort_as_half(w)));
    P(__half2uint_ru(__ushort_as_half(w))); P(__half2ll_rd(__ushort_as_half(w))); P(__int2half_rn(i)); P(__int2half_rz(i)); P(__ll2half_ru(l)); P(__float2bfloat16_rn(f)); P(__float2bfloat16_rz(f)); P(__bfloat162float(__ushort_as_bfloat16(w))); P(__bfloat162int_rn(__ushort_as_bfloat16(w)));
    P(hrint(__ushort_as_half(w))); P(hfloor(__ushort_as_half(w))); P(__half_as_ushort(__float2half2_rn(f).x) + 0u);
}
__global__ void exact_int(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    int a = FA[t], b = FB[t]; unsigned c = FC[t]; unsigned long long l = DA[t], m = DB[t];
    if (t & 4) b &= 31; if (t & 8) c &= 63; if (t & 16) m &= 0xffff;
    P(__mulhi(a, b)); P(__umulhi(a, c)); P(__umul64hi(l, m)); P(__mul64hi(l, m)); P(__popc(c)); P(__popcll(l)); P(__clz(a)); P(__clzll(l)); P(__brev(c)); P(__brevll(l)); P(__ffs(a)); P(__ffsll(l));
    P(__byte_perm(a, b, c)); P(__funnelshift_l(a, b, c)); P(__funnelshift_r(a, b, c)); P(__funnelshift_lc(a, b, c)); P(__funnelshift_rc(a, b, c));
    P(a / b); P(a % b); P((unsigned)a / c); P((unsigned)a % c); P(l / m); P(l % m); P((long long)l / (long long)m); P((long long)l % (long long)m);
    P(__sad(a, b, c)); P(__usad(a, b, c)); P(__dp4a(a, b, (int)c)); P(__dp4a((unsigned)a, (unsigned)b, c)); P(__dp2a_lo(a, b, (int)c)); P(__dp2a_hi(a, b, (int)c));
    P(abs(a)); P(min(a, b)); P(max((unsigned)a, c)); P(min(l, m)); P(max((long long)l, (long long)m)); P(__mul24(a, b)); P(__umul24(a, c));
    unsigned __int128 q = (unsigned __int128)l * m + c; P((unsigned long long)(q >> 64)); P((unsigned long long)q); q -= (unsigned __int128)m << 64; P((unsigned long long)(q >> 64)); P((unsigned long long)(q >> (c & 127)));
    P(__vadd4(a, b)); P(__vcmpgtu2(a, b)); P(__hadd(a, b)); P(__rhadd(a, b)); P((long long)a * b); P((long long)a * b + (long long)m); P(__vabsdiffu4(a, b)); P(__vminu2(a, b)); P(__vsadu4(a, b));
    unsigned r; unsigned long long s;
    asm("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c)); P(r);
    asm("shr.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c)); P(r);
    asm("shr.u64 %0, %1, %2;" : "=l"(s) : "l"(l), "r"(c)); P(s);
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("bfe.u64 %0, %1, %2, %3;" : "=l"(s) : "l"(l), "r"(b), "r"(c)); P(s);
    asm("bfe.s64 %0, %1, %2, %3;" : "=l"(s) : "l"(l), "r"(b), "r"(c)); P(s);
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(t * 77), "r"(b), "r"(c)); P(r);
    asm("bfi.b64 %0, %1, %2, %3, %4;" : "=l"(s) : "l"(l), "l"(m), "r"(b), "r"(c)); P(s);
    asm("bfind.s32 %0, %1;" : "=r"(r) : "r"(a)); P(r);
    asm("bfind.shiftamt.s64 %0, %1;" : "=r"(r) : "l"(l)); P(r);
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("prmt.b32.b4e %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("prmt.b32.rc8 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("prmt.b32.ecl %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("prmt.b32.ecr %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("szext.clamp.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c)); P(r);
    asm("szext.clamp.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c)); P(r);
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(r) : "r"(b), "r"(c)); P(r);
    asm("bmsk.wrap.b32 %0, %1, %2;" : "=r"(r) : "r"(b), "r"(c)); P(r);
    asm("mad24.lo.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("mul24.hi.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); P(r);
    asm("mul24.hi.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); P(r);
    asm("add.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c)); P(r);
    asm("slct.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); P(r);
    asm("slct.u32.f32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "f"(F(c))); P(r);
    asm("set.ge.u32.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); P(r);
    asm("{.reg .pred p; testp.normal.f32 p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(r) : "f"(F(a))); P(r);
    asm("{.reg .pred p; testp.finite.f64 p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(r) : "d"(D(l))); P(r);
    asm("cvt.sat.s8.s32 %0, %1;" : "=r"(r) : "r"(a)); P(r);
    asm("cvt.sat.u16.s64 %0, %1;" : "=r"(r) : "l"(l)); P(r);
}
__global__ void exact_half(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    unsigned ra = FA[t] >> 8, rb = FB[t] >> 8, rc = FC[t] >> 8;
    __half a = __ushort_as_half(ra), b = __ushort_as_half(rb), c = __ushort_as_half(rc);
    P(__hadd(a, b)); P(__hsub(a, b)); P(__hmul(a, b)); P(__hfma(a, b, c)); P(__hmin(a, b)); P(__hmax(a, b)); P(__hmax_nan(a, b)); P(-a); P(__habs(a)); P(__hadd_sat(a, b)); P(__hfma_relu(a, b, c));
    P((unsigned)(a < b) + 2 * (a == b) + 4 * (a != b) + 8 * (a >= b));
    __half2 p = __halves2half2(a, b), q = __halves2half2(c, a), r = __hfma2(p, q, p);
    P(__low2half(r)); P(__high2half(r)); r = __hgt2(p, q); P(__low2half(r)); P(__high2half(r)); r = __hmul2_sat(p, q); P(__high2half(r));
    __nv_bfloat16 x = __ushort_as_bfloat16(ra), y = __ushort_as_bfloat16(rb), z = __ushort_as_bfloat16(rc);
    P(__hadd(x, y)); P(__hmul(x, y)); P(__hfma(x, y, z)); P(__hmin(x, y)); P(__hmax(x, y)); P((unsigned)(x < y) + 2 * (x == y));
}
// Approximations: within some units in the last place of the hardware's.
__global__ void close_f32(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    float a = F(FA[t]), b = F(FB[t]);
    P(sinf(a)); P(cosf(a)); P(expf(a)); P(logf(a)); P(powf(a, b)); P(rsqrtf(a)); P(tanf(a)); P(tanhf(a)); P(erff(a)); P(lgammaf(a)); P(cbrtf(a)); P(exp2f(a)); P(log10f(a)); P(atan2f(a, b)); P(hypotf(a, b)); P(asinf(a)); P(sinhf(a)); P(log1pf(a)); P(expm1f(a)); P(__fdividef(a, b));
}
__global__ void close_f64(unsigned long long *o) {
    int t = threadIdx.x, n = 0;
    double a = D(DA[t]), b = D(DB[t]);
    P(sin(a)); P(cos(a)); P(exp(a)); P(log(a)); P(pow(a, b)); P(rsqrt(a)); P(tan(a)); P(tanh(a)); P(erf(a)); P(lgamma(a)); P(cbrt(a)); P(exp2(a)); P(log10(a)); P(atan2(a, b)); P(hypot(a, b)); P(asin(a)); P(sinh(a)); P(log1p(a)); P(expm1(a)); P(fmod(a, b)); P(remainder(a, b)); P(j0(a)); P(tgamma(a));
}
}
